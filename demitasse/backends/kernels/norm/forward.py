"""Normalisation of channels, and of separate planes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Arguments, Output, Struct
from demitasse.backends.kernels.language.words import (
    FLOAT,
    Vector,
    Word,
    clamp_min,
    fma,
    minimum,
    rectified,
    root,
)
from demitasse.backends.kernels.norm import has_rest
from demitasse.backends.kernels.norm.images import (
    FIRST_PIXELS,
    Counts,
    ImageLoopFields,
    Plane,
    counts,
    each_plane,
    image_loop_values,
    summed,
    sums_size,
)
from demitasse.backends.kernels.tuning import TunedKernel, Tuning


class ForwardFields(Struct):
    """A normalisation; the output has the layout of ``x``, and may be the same memory."""

    walk: ImageLoopFields
    x: Address
    y: Output
    factors: Address
    """Factor of each channel; the channels' other numbers are arrays of the same shape."""
    offsets: Address
    mean: Output
    variance: Output
    inverse: Output
    """1 / sqrt(variance + eps)."""


@ForwardFields.kernel("normalization_planes")
def _planes_kernel(k: Kernel, f: ForwardFields, *, rest: bool) -> None:
    """Write each plane's mean and its sum of squared deviations."""
    numbers, stride, zero = counts(k, f.walk), f.walk.pixel_stride * FLOAT, k.constant(0.0)
    with each_plane(k, f.walk, rest=rest) as plane:
        about, away, squares = _deviations(k, f, plane, numbers, stride, ahead=True)
        by = away * numbers.each_pixel
        k.store(about + by, plane.sums)
        # rounding must not make it negative
        k.store(clamp_min(fma(-away, by, squares), zero), plane.sums + k.vector_bytes)


@ForwardFields.kernel("normalization")
def _kernel(k: Kernel, f: ForwardFields, *, relu: bool, rest: bool) -> None:
    numbers, stride = counts(k, f.walk), f.walk.pixel_stride * FLOAT
    own = k.scratch(2)
    with each_plane(k, f.walk, rest=rest) as plane:
        with k.when(plane.begins):
            _join(k, f, plane, numbers, own)
        mean, factor = k.load(own), k.load(own + k.vector_bytes)
        offset = plane.load(k, f.offsets + plane.channels)
        with k.loop(f.walk.pixels) as pixel:
            at = plane.first + pixel.i * stride
            k.prefetch(f.x + plane.following + pixel.i * stride, 2)
            value = fma(plane.load(k, f.x + at) - mean, factor, offset)
            plane.store(k, rectified(value, k.constant(0.0)) if relu else value, f.y + at)


def _deviations(
    k: Kernel, f: ForwardFields | PlaneFields, plane: Plane, numbers: Counts, stride: Word, *,
    ahead: bool,
) -> tuple[Vector, Vector, Vector]:  # fmt: skip
    """Return an approximate mean, the sum of deviations from it, and the sum of their squares.

    With ``ahead``, the next plane is prefetched.
    """
    zero, first = k.constant(0.0), f.x + plane.first
    some = minimum(f.walk.pixels, FIRST_PIXELS)
    [total] = summed(
        k, some, stride, [zero], lambda at, sums: [sums[0] + plane.load(k, first + at)]
    )
    about = total * numbers.first_pixels

    def add(at: Word, sums: Sequence[Vector]) -> list[Vector]:
        if ahead:
            k.prefetch(f.x + plane.following + at, 2)
        away = plane.load(k, first + at) - about
        return [sums[0] + away, fma(away, away, sums[1])]

    away, squares = summed(k, f.walk.pixels, stride, [zero, zero], add)
    return about, away, squares


def _join(k: Kernel, f: ForwardFields, plane: Plane, numbers: Counts, own: Word) -> None:
    """Write the statistics of all images; keep the mean and what deviations are multiplied by."""
    zero, step = k.constant(0.0), 2 * k.vector_bytes
    with k.loop(f.walk.images, vectors=[zero]) as image:
        image.vectors = [image.vectors[0] + k.load(plane.all_sums + image.i * step)]
    mean = image.vectors[0] * numbers.each_image
    with k.loop(f.walk.images, vectors=[zero, zero]) as image:
        at = plane.all_sums + image.i * step
        away = k.load(at) - mean
        within, between = image.vectors
        image.vectors = [within + k.load(at + k.vector_bytes), fma(away, away, between)]
    within, between = image.vectors
    variance = fma(between, numbers.pixels, within) * numbers.each
    inverse = k.constant(1.0) / root(variance + numbers.eps)
    k.store(mean, own)
    k.store(inverse * plane.load(k, f.factors + plane.channels), own + k.vector_bytes)
    with k.when(plane.image < 1):
        for value, target in ((mean, f.mean), (variance, f.variance), (inverse, f.inverse)):
            plane.store(k, value, target + plane.channels)


class Normalization(TunedKernel):
    """y = (x - mean) / sqrt(variance + eps) * factor + offset, and perhaps max(y, 0); NaN stays.

    Mean and variance are those of each channel in the batch. Input and output have one layout.

    Attributes:
        mean, variance: Statistics of the last batch. Shapes: (C,).
        inverse: 1 / sqrt(variance + eps). Shape: (C,).
        rest: True if the last vector of channels is partial.
        sums_size: Elements of scratch memory for a call.
    """

    kernel = "norm"

    def __init__(self, images: Images, eps: float, tuning: Tuning, *, relu: bool) -> None:
        self.images, self.eps, self.tuning, self.relu = images, eps, tuning, relu
        self.mean, self.variance, self.inverse = (aligned(images.shape[1]) for _ in range(3))
        self.sums_size, self.rest = sums_size(images, tuning.width), has_rest(images, tuning.width)
        self._kernels = (
            _planes_kernel(tuning.width, rest=self.rest),
            _kernel(tuning.width, relu=relu, rest=self.rest),
        )
        self._arguments = Arguments(
            ForwardFields.values(
                walk=image_loop_values(images, tuning.width, eps),
                mean=self.mean,
                variance=self.variance,
                inverse=self.inverse,
            )
        )

    def __call__(
        self, source: np.ndarray, target: np.ndarray, factors: np.ndarray, offsets: np.ndarray,
        sums: np.ndarray,
    ) -> None:  # fmt: skip
        """Write the statistics, and ``target``, which may be ``source``."""
        each = {
            "x": source, "y": target, "factors": factors, "offsets": offsets, "walk.sums": sums,
        }  # fmt: skip
        for kernel in self._kernels:
            self._arguments.run(kernel, self.tuning.threads, each)


class PlaneFields(Struct):
    """Planes that are normalised separately; the output has the layout of ``x``."""

    walk: ImageLoopFields
    x: Address
    y: Output
    deviations: Output
    """Divisor of each channel of each image."""


@PlaneFields.kernel("plane_norm")
def _plane_norm_kernel(k: Kernel, f: PlaneFields) -> None:
    numbers, stride = counts(k, f.walk), f.walk.pixel_stride * FLOAT
    zero, row_bytes = k.constant(0.0), f.walk.groups * k.vector_bytes
    with each_plane(k, f.walk) as plane:
        about, away, squares = _deviations(k, f, plane, numbers, stride, ahead=False)
        by = away * numbers.each_pixel
        variance = clamp_min(fma(-away, by, squares) * numbers.each_pixel, zero)
        mean, deviation = about + by, root(variance) + numbers.eps
        k.store(deviation, f.deviations + plane.image * row_bytes + plane.channels)
        with k.loop(f.walk.pixels) as pixel:
            at = plane.first + pixel.i * stride
            k.store((k.load(f.x + at) - mean) / deviation, f.y + at)


class PlaneNorm(TunedKernel):
    """y = (x - mean) / (sqrt(variance) + eps), of each channel of each image; NaN stays.

    The divisors of the last call are ``deviations``, (N, C).
    """

    kernel = "plane norm"

    def __init__(self, images: Images, eps: float, tuning: Tuning) -> None:
        self.tuning, self._kernel = tuning, _plane_norm_kernel(tuning.width)
        self.deviations = aligned(images.shape[0] * images.shape[1]).reshape(images.shape[:2])
        walk = image_loop_values(images, tuning.width, eps)
        self._arguments = Arguments(PlaneFields.values(walk=walk, deviations=self.deviations))

    def __call__(self, x: np.ndarray, y: np.ndarray) -> None:
        """Write ``y``, which may be ``x``."""
        each: dict[str, np.ndarray | None] = {"x": x, "y": y, "walk.sums": None}
        self._arguments.run(self._kernel, self.tuning.threads, each)
