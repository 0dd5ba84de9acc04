"""Normalisation by the statistics of a batch, with the rectifier after it, in training.

Each image is read once for its mean and its sum of squared deviations. Backward recomputes the
rectifier's mask rather than keeping it.
"""

from __future__ import annotations

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.bound import BoundKernel
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import (
    RUNTIME,
    Address,
    OptionalAddress,
    Output,
    Struct,
)
from demitasse.backends.kernels.language.values import (
    Vector,
    Word,
    choose,
    clamp_min,
    fma,
    minimum,
    rectified,
    root,
)
from demitasse.backends.kernels.planes import Lanes, Plane, PlaneFields, Planes
from demitasse.backends.kernels.tuning import Tuning


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
    walk: PlaneFields


class BatchFields(ForwardFields):
    """A normalisation that writes the batch's statistics."""

    mean: Output
    variance: Output
    inverse: Output


@ForwardFields.kernel("normalization_planes")
def _planes_kernel(k: Kernel, f: ForwardFields, lanes: Lanes) -> None:
    """Write each plane's mean and its sum of squared deviations."""
    planes = Planes(k, f.walk, lanes)
    each, of_first = planes.number("each_pixel"), planes.number("first_pixels")
    with planes.each() as plane:
        about, away, squares = _deviations(planes, f.x, plane, of_first, ahead=True)
        by = away * each
        k.store(about + by, plane.sums)
        # rounding must not make it negative
        k.store(clamp_min(fma(-away, by, squares), 0.0), plane.sums + k.vector_bytes)


@ForwardFields.kernel("normalization_statistics")
def _statistics_kernel(k: Kernel, f: ForwardFields, lanes: Lanes) -> None:
    """Write the statistics of all images."""
    planes = Planes(k, f.walk, lanes)
    with planes.of_first_image() as plane:
        mean = planes.over_images(plane, 1)[0] * planes.number("each_image")

        def add(at: Word, within: Vector, between: Vector) -> list[Vector]:
            away = k.load(at) - mean
            return [within + k.load(at + k.vector_bytes), fma(away, away, between)]

        within, between = planes.over_images(plane, 2, add)
        variance = fma(between, planes.number("pixels"), within) * planes.number("each")
        inverse = 1.0 / root(variance + planes.number("eps"))
        for value, target in ((mean, f.mean), (variance, f.variance), (inverse, f.inverse)):
            plane.store_numbers(value, target)


@ForwardFields.kernel("normalization")
def _kernel(k: Kernel, f: ForwardFields, lanes: Lanes, *, relu: bool) -> None:
    def numbers(plane: Plane) -> tuple[Vector, Vector, Vector]:
        factor = plane.numbers(f.inverse) * plane.numbers(f.factors)
        return plane.numbers(f.mean), factor, plane.numbers(f.offsets)

    def write(here: Word, plane: Plane, numbers: tuple[Vector, Vector, Vector]) -> None:
        mean, factor, offset = numbers
        value = fma(plane.load(f.x + here) - mean, factor, offset)
        plane.store(rectified(value) if relu else value, f.y + here)

    Planes(k, f.walk, lanes).each_vector(numbers, write, [f.x])


def _deviations(
    planes: Planes, x: Word, plane: Plane, of_first: Vector, *, ahead: bool
) -> tuple[Vector, Vector, Vector]:
    """Return an approximate mean, the sum of deviations from it, and the sum of their squares.

    With ``ahead``, the next plane is prefetched.
    """
    lanes, first = planes.lanes, x + plane.first
    vectors = lanes.first_pixels // (lanes.width if plane.of_pixels else 1)

    def add_up(at: Word, part: Plane, total: Vector) -> list[Vector]:
        return [total + part.load(first + at)]

    [total] = planes.summed(plane, 1, add_up, minimum(planes.f.pixels, vectors))
    about = total * of_first

    def add(at: Word, part: Plane, total: Vector, squares: Vector) -> list[Vector]:
        away = part.load(first + at) - about
        if part.some is not None and plane.of_pixels:
            away = choose(part.some, away, 0.0)
        return [total + away, fma(away, away, squares)]

    away, squares = planes.summed(plane, 2, add, ahead=[x] if ahead else [])
    return about, away, squares


class Normalization(BoundKernel):
    """y = (x - mean) / sqrt(variance + eps) * factor + offset, and perhaps max(y, 0); NaN stays.

    Mean and variance are those of each channel in the batch, or ``stored``, as the caller has
    written them. A call takes x, y, which has its layout and may be x, factors, offsets and scratch
    memory.

    Attributes:
        mean, variance: Statistics of the last batch. Shapes: (C,).
        inverse: 1 / sqrt(variance + eps). Shape: (C,).
    """

    def __init__(
        self, images: Images, eps: float, tuning: Tuning, *, relu: bool, stored: bool = False
    ) -> None:
        self.images, self.eps, self.relu, self.stored = images, eps, relu, stored
        self.mean, self.variance, self.inverse = (aligned(images.shape[1]) for _ in range(3))
        lanes = self.lanes = Lanes.of(images, tuning.width)
        width = lanes.width
        measure = [] if stored else [_planes_kernel(width, lanes), _statistics_kernel(width, lanes)]
        values = (ForwardFields if stored else BatchFields).values(
            mean=self.mean,
            variance=self.variance,
            inverse=self.inverse,
            walk=lanes.values(images, eps, sums=True),
        )
        kernels, size = (*measure, _kernel(width, lanes, relu=relu)), lanes.sums_size(images)
        super().__init__("norm", kernels, values, tuning, scratch_size=size)


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
    each, of_first, eps = map(planes.number, ("each_pixel", "first_pixels", "eps"))
    with planes.each() as plane:
        about, away, squares = _deviations(planes, f.x, plane, of_first, ahead=False)
        by = away * each
        variance = clamp_min(fma(-away, by, squares) * each, 0.0)
        mean, deviation = about + by, root(variance) + eps
        plane.store_numbers(deviation, f.deviations + plane.row)

        def write(at: Word, part: Plane) -> None:
            here = plane.first + at
            part.store((part.load(f.x + here) - mean) / deviation, f.y + here)

        planes.each_pixel(plane, write)


class PlaneNorm(BoundKernel):
    """y = (x - mean) / (sqrt(variance) + eps), of each channel of each image; NaN stays.

    A call takes x and y, which may be x. The divisors of the last call are ``deviations``, (N, C).
    """

    def __init__(self, images: Images, eps: float, tuning: Tuning) -> None:
        lanes = Lanes.of(images, tuning.width)
        self.deviations = aligned(images.shape[0] * images.shape[1]).reshape(images.shape[:2])
        walk = lanes.values(images, eps)
        values = PlaneNormFields.values(deviations=self.deviations, walk=walk)
        super().__init__("plane norm", _plane_norm_kernel(lanes.width, lanes), values, tuning)


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
    """Gradient between the norm and its factors and offsets."""
    mean: Address
    inverse: Address
    walk: PlaneFields


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

    def write(self, here: Word, plane: Plane, slopes: Vector, dy: Vector, *, behind: bool) -> None:
        """Write a vector of the gradient, and perhaps that behind the norm."""
        plane.store(slopes, self._f.dx + here)
        if behind:
            plane.store(dy * self.given, self._f.behind + here)


@BackwardFields.kernel("normalization_gradient_planes")
def _gradient_planes_kernel(
    k: Kernel, f: BackwardFields, lanes: Lanes, *, relu: bool, stored: bool, behind: bool
) -> None:
    """Write the sums of each plane's gradients, and of their products with the deviations.

    With ``stored`` statistics, write the input's gradients too.
    """
    planes = Planes(k, f.walk, lanes)
    with planes.each() as plane:
        channels = _Channels(f, plane, relu=relu)

        def add(at: Word, part: Plane, total: Vector, products: Vector) -> list[Vector]:
            here = plane.first + at
            away, dy = channels.pixel(here, part)
            if stored:
                channels.write(here, part, dy * channels.factor, dy, behind=behind)
            return [total + dy, fma(away, dy, products)]

        for place, total in enumerate(planes.summed(plane, 2, add, ahead=[f.x, f.dy])):
            k.store(total, plane.sums + place * k.vector_bytes)


@BackwardFields.kernel("normalization_gradient_sums")
def _gradient_sums_kernel(k: Kernel, f: BackwardFields, lanes: Lanes) -> None:
    """Write the gradients of factors and offsets, and the terms for the input's gradient."""
    planes = Planes(k, f.walk, lanes)
    with planes.of_first_image() as plane:
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
    k: Kernel, f: BackwardFields, lanes: Lanes, *, relu: bool, stored: bool, behind: bool
) -> None:
    def numbers(plane: Plane) -> tuple[_Channels, Vector, Vector]:
        level, slope = k.load(plane.all_sums), k.load(plane.all_sums + k.vector_bytes)
        return _Channels(f, plane, relu=relu), level, slope

    def write(here: Word, plane: Plane, numbers: tuple[_Channels, Vector, Vector]) -> None:
        channels, level, slope = numbers
        away, dy = channels.pixel(here, plane)
        slopes = dy * channels.factor
        if not stored:
            slopes = fma(away, slope, fma(dy, channels.factor, level))
        channels.write(here, plane, slopes, dy, behind=behind)

    Planes(k, f.walk, lanes).each_vector(numbers, write, [f.x, f.dy])


class NormalizationGradient(BoundKernel):
    """The gradients of input, factors and offsets, and perhaps the one ``behind`` the norm.

    Without ``learns``, those of factors and offsets are written by statistics of the batch alone. A
    call takes x, dy, dx, factors, offsets, the gradients of these, perhaps the one behind the norm,
    and scratch memory. dx and the one behind may be dy.
    """

    def __init__(
        self, forward: Normalization, *, behind: bool = False, learns: bool = True
    ) -> None:
        lanes, relu, stored = forward.lanes, forward.relu, forward.stored
        width, flags = lanes.width, {"relu": relu, "stored": stored}
        kernels = []
        if learns or not stored:
            one = _gradient_planes_kernel(width, lanes, **flags, behind=stored and behind)
            kernels = [one, _gradient_sums_kernel(width, lanes)]
        if not (learns and stored):
            kernels.append(_gradient_kernel(width, lanes, **flags, behind=behind))
        values = BackwardFields.values(
            behind=RUNTIME if behind else None,
            mean=forward.mean,
            inverse=forward.inverse,
            walk=lanes.values(forward.images, forward.eps, sums=True),
        )
        size = forward.scratch_size
        super().__init__("norm gradient", kernels, values, forward.tuning, scratch_size=size)
