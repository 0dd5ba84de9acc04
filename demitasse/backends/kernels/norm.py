"""Normalisation by the statistics of a batch, with the rectifier after it, in training.

Each image is read once for its mean and its sum of squared deviations. Backward recomputes the
rectifier's mask rather than keeping it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import (
    RUNTIME,
    Address,
    CompiledKernel,
    OptionalAddress,
    Output,
    Struct,
)
from demitasse.backends.kernels.language.values import (
    FLOAT,
    Vector,
    Word,
    choose,
    clamp_min,
    fma,
    minimum,
    rectified,
    root,
)
from demitasse.backends.kernels.planes import (
    PLANE_SUMS,
    Lanes,
    Plane,
    PlaneFields,
    PlaneKernel,
    Planes,
)
from demitasse.backends.kernels.tuning import Tuning

MEANS = 2
"""Running averages that are no sums: mean and variance."""

SHARES = 3
"""Factors of running averages."""


class ForwardFields(Struct):
    """A normalisation; the output has the layout of ``x``, and may be the same memory."""

    x: Address
    y: Output
    factors: Address
    """Factor of each channel; the channels' other numbers are arrays of the same shape."""
    offsets: Address
    mean: Address
    variance: Address
    inverse: Address
    """1 / sqrt(variance + eps)."""
    mean_average: OptionalAddress
    """Running average of the batches' means; or their sum, with the sum's ``weight``."""
    variance_average: OptionalAddress
    weight: OptionalAddress
    shares: OptionalAddress
    """Factors of the averages so far, of the batch's mean, and of its variance."""
    walk: PlaneFields


class BatchFields(ForwardFields):
    """A normalisation that writes the batch's statistics."""

    mean: Output
    variance: Output
    inverse: Output


@ForwardFields.kernel("normalization_planes")
def _planes_kernel(k: Kernel, f: ForwardFields, lanes: Lanes) -> None:
    """Write each plane's mean and its sum of squared deviations."""
    planes = Planes(k, f.walk, lanes, [f.x])
    with planes.each() as plane:
        mean, squares = _mean_and_squares(planes, f.x, plane)
        k.store(mean, plane.sums)
        k.store(squares, plane.sums + k.vector_bytes)


@ForwardFields.kernel("normalization_statistics")
def _statistics_kernel(k: Kernel, f: ForwardFields, lanes: Lanes, *, averages: int) -> None:
    """Write the statistics of all images, and the running averages."""
    planes = Planes(k, f.walk, lanes)
    with planes.each(first_image=True) as plane:
        mean = planes.over_images(plane, 1)[0] * planes.number("each_image")

        def add(at: Word, within: Vector, between: Vector) -> list[Vector]:
            away = k.load(at) - mean
            return [within + k.load(at + k.vector_bytes), fma(away, away, between)]

        within, between = planes.over_images(plane, 2, add)
        variance = fma(between, planes.number("pixels"), within) * planes.number("each")
        inverse = 1.0 / root(variance + planes.number("eps"))
        for value, target in ((mean, f.mean), (variance, f.variance), (inverse, f.inverse)):
            plane.store_numbers(value, target)
        if averages:
            kept, *shares = (k.broadcast(f.shares + FLOAT * place) for place in range(SHARES))
            rows = f.mean_average, f.variance_average
            for value, share, row in zip((mean, variance), shares, rows, strict=True):
                plane.store_numbers(plane.numbers(row) * kept + value * share, row)
        if averages > MEANS:
            with k.when(plane.channels < 1):
                weight = k.broadcast(f.weight) * kept + 1.0
                k.store(weight, f.weight, k.lane_mask(1))


@ForwardFields.kernel("normalization")
def _kernel(k: Kernel, f: ForwardFields, lanes: Lanes, *, relu: bool) -> None:
    def numbers(plane: Plane) -> tuple[Vector, Vector, Vector]:
        factor = plane.numbers(f.inverse) * plane.numbers(f.factors)
        return plane.numbers(f.mean), factor, plane.numbers(f.offsets)

    def write(here: Word, plane: Plane, numbers: tuple[Vector, Vector, Vector]) -> None:
        mean, factor, offset = numbers
        value = fma(plane.load(f.x + here) - mean, factor, offset)
        plane.store(rectified(value) if relu else value, f.y + here)

    Planes(k, f.walk, lanes, [f.x]).each_vector(numbers, write)


def _mean_and_squares(planes: Planes, x: Word, plane: Plane) -> tuple[Vector, Vector]:
    """Return a plane's mean, and the sum of the squares of the deviations from it."""
    lanes = planes.lanes
    vectors = lanes.first_pixels // (lanes.width if plane.of_pixels else 1)

    def add_up(here: Word, part: Plane, total: Vector) -> list[Vector]:
        return [total + part.load(x + here)]

    [total] = planes.each_pixel(plane, add_up, 1, minimum(planes.f.pixels, vectors))
    about = total * planes.number("first_pixels")

    def add(here: Word, part: Plane, total: Vector, squares: Vector) -> list[Vector]:
        away = part.load(x + here) - about
        if part.some is not None and plane.of_pixels:
            away = choose(part.some, away, 0.0)
        return [total + away, fma(away, away, squares)]

    away, squares = planes.each_pixel(plane, add, 2)
    by = away * planes.number("each_pixel")
    # rounding must not make it negative
    return about + by, clamp_min(fma(-away, by, squares), 0.0)


class Normalization(PlaneKernel):
    """y = (x - mean) / sqrt(variance + eps) * factor + offset, and perhaps max(y, 0); NaN stays.

    Mean and variance are those of each channel in the batch, or ``stored``, as the caller has
    written them. A call takes x, y, which has its layout and may be x, factors, offsets, the
    running averages and scratch memory.

    Args:
        averages: Number of arrays of running averages: mean and variance, and perhaps the weight
            of their sums; 0 for none.

    Attributes:
        shares: Factors of the averages so far, of the batch's mean and variance. Shape: (3,).
        mean, variance: Statistics of the last batch. Shapes: (C,).
        inverse: 1 / sqrt(variance + eps). Shape: (C,).
    """

    def __init__(
        self, images: Images, eps: float, tuning: Tuning, *, relu: bool, stored: bool = False,
        averages: int = 0,
    ) -> None:  # fmt: skip
        self.images, self.eps, self.relu, self.stored = images, eps, relu, stored
        self.mean, self.variance, self.inverse = (aligned(images.shape[1]) for _ in range(3))
        self.shares = aligned(SHARES)
        statistics = partial(_statistics_kernel, averages=averages)
        measure = () if stored else (_planes_kernel, statistics)
        means = RUNTIME if averages else None
        super().__init__(
            "norm", images, tuning, ForwardFields if stored else BatchFields,
            *measure, partial(_kernel, relu=relu),
            eps=eps, bands=True, mean=self.mean, variance=self.variance, inverse=self.inverse,
            mean_average=means, variance_average=means,
            weight=RUNTIME if averages > MEANS else None, shares=self.shares,
        )  # fmt: skip


class PlaneNormFields(Struct):
    """Planes that are normalised separately; the output has the layout of ``x``."""

    x: Address
    y: Output
    deviations: Output
    """Divisor of each channel of each image."""
    walk: PlaneFields


@PlaneNormFields.kernel("plane_norm")
def _plane_norm_kernel(k: Kernel, f: PlaneNormFields, lanes: Lanes) -> None:
    planes = Planes(k, f.walk, lanes)
    with planes.each() as plane:
        mean, squares = _mean_and_squares(planes, f.x, plane)
        deviation = root(squares * planes.number("each_pixel")) + planes.number("eps")
        plane.store_numbers(deviation, f.deviations + plane.row)

        def write(here: Word, part: Plane) -> None:
            part.store((part.load(f.x + here) - mean) / deviation, f.y + here)

        planes.each_pixel(plane, write)


class PlaneNorm(PlaneKernel):
    """y = (x - mean) / (sqrt(variance) + eps), of each channel of each image; NaN stays.

    A call takes x and y, which may be x. The divisors of the last call are ``deviations``, (N, C).
    """

    def __init__(self, images: Images, eps: float, tuning: Tuning) -> None:
        self.deviations = aligned(images.shape[0] * images.shape[1]).reshape(images.shape[:2])
        super().__init__(
            "plane norm", images, tuning, PlaneNormFields, _plane_norm_kernel,
            eps=eps, deviations=self.deviations,
        )  # fmt: skip


class BackwardFields(Struct):
    """The gradients of a normalisation; all images have the layout of ``x``."""

    x: Address
    """Input of the normalisation."""
    dy: Address
    dx: Output
    """Gradient of the input; may be the memory of ``dy``, as may ``behind``."""
    factors: Address
    """Factor of each channel; the channels' other numbers are arrays of the same shape."""
    offsets: Address
    factor_gradients: Output
    offset_gradients: Output
    behind: OptionalAddress
    """Gradient between the norm and its factors and offsets, or after these."""
    mean: Address
    inverse: Address
    walk: PlaneFields


Behind = Literal["", "norm", "factors"]
"""After what another gradient is written: nothing, the norm, or its factors and offsets."""


class _Channels:
    """Statistics and factors of a plane's channels."""

    def __init__(self, f: BackwardFields, plane: Plane, *, relu: bool) -> None:
        self._f = f
        rows = f.mean, f.inverse, f.factors
        self.mean, self.inverse, self.given = (plane.numbers(row) for row in rows)
        self.factor = self.inverse * self.given
        self._offset = plane.numbers(f.offsets) if relu else None

    def pixel(self, here: Word, plane: Plane) -> tuple[Vector, Vector]:
        """Return a vector of deviations, and the gradients that the rectifier let pass."""
        f = self._f
        away, dy = plane.load(f.x + here) - self.mean, plane.load(f.dy + here)
        if self._offset is not None:
            dy = choose(fma(away, self.factor, self._offset) > 0.0, dy, 0.0)
        return away, dy

    def write(self, here: Word, plane: Plane, slopes: Vector, dy: Vector, behind: Behind) -> None:
        """Write a vector of the gradient, and perhaps that behind the norm, or its factors."""
        plane.store(slopes, self._f.dx + here)
        if behind:
            plane.store(dy * self.given if behind == "norm" else dy, self._f.behind + here)


@BackwardFields.kernel("normalization_gradient_planes")
def _gradient_planes_kernel(
    k: Kernel, f: BackwardFields, lanes: Lanes, *, relu: bool, stored: bool, behind: Behind
) -> None:
    """Write the sums of each plane's gradients, and of their products with the deviations.

    With ``stored`` statistics, write the input's gradients too.
    """
    planes = Planes(k, f.walk, lanes, [f.x, f.dy])
    with planes.each() as plane:
        channels = _Channels(f, plane, relu=relu)

        def add(here: Word, part: Plane, total: Vector, products: Vector) -> list[Vector]:
            away, dy = channels.pixel(here, part)
            if stored:
                channels.write(here, part, dy * channels.factor, dy, behind)
            return [total + dy, fma(away, dy, products)]

        for place, total in enumerate(planes.each_pixel(plane, add, 2)):
            k.store(total, plane.sums + place * k.vector_bytes)


@BackwardFields.kernel("normalization_gradient_sums")
def _gradient_sums_kernel(k: Kernel, f: BackwardFields, lanes: Lanes) -> None:
    """Write the gradients of factors and offsets, and the terms for the input's gradient."""
    planes = Planes(k, f.walk, lanes)
    with planes.each(first_image=True) as plane:
        channels = _Channels(f, plane, relu=False)
        total, products = planes.over_images(plane, 2)
        products = products * channels.inverse
        by = channels.factor * planes.number("each")
        k.store(-(total * by), plane.all_sums)
        k.store(-(products * by * channels.inverse), plane.all_sums + k.vector_bytes)
        plane.store_numbers(products, f.factor_gradients)
        plane.store_numbers(total, f.offset_gradients)


@BackwardFields.kernel("normalization_gradient")
def _gradient_kernel(
    k: Kernel, f: BackwardFields, lanes: Lanes, *, relu: bool, stored: bool, behind: Behind
) -> None:
    def numbers(plane: Plane) -> tuple[_Channels, list[Vector]]:
        places = range(0 if stored else PLANE_SUMS)
        terms = [k.load(plane.all_sums + place * k.vector_bytes) for place in places]
        return _Channels(f, plane, relu=relu), terms

    def write(here: Word, plane: Plane, numbers: tuple[_Channels, list[Vector]]) -> None:
        channels, terms = numbers
        away, dy = channels.pixel(here, plane)
        slopes = dy * channels.factor
        if terms:
            level, slope = terms
            slopes = fma(away, slope, fma(dy, channels.factor, level))
        channels.write(here, plane, slopes, dy, behind)

    Planes(k, f.walk, lanes, [f.x, f.dy]).each_vector(numbers, write)


class NormalizationGradient(PlaneKernel):
    """The gradients of input, factors and offsets, and perhaps another, ``behind`` the norm.

    Without ``learns``, those of factors and offsets are written by statistics of the batch alone. A
    call takes x, dy, dx, factors, offsets, the gradients of these, perhaps the one behind the norm,
    and scratch memory. dx and the one behind may be dy.
    """

    def __init__(self, forward: Normalization, *, behind: Behind = "", learns: bool = True) -> None:
        relu, stored = forward.relu, forward.stored
        kernels: list[Callable[[int, Lanes], CompiledKernel]] = []
        if learns or not stored:
            own = partial(_gradient_planes_kernel, relu=relu, stored=stored)
            kernels = [partial(own, behind=behind if stored else ""), _gradient_sums_kernel]
        if not (learns and stored):
            kernels.append(partial(_gradient_kernel, relu=relu, stored=stored, behind=behind))
        super().__init__(
            "norm gradient", forward.images, forward.tuning, BackwardFields, *kernels,
            eps=forward.eps, bands=True, behind=RUNTIME if behind else None, mean=forward.mean,
            inverse=forward.inverse,
        )  # fmt: skip
