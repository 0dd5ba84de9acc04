"""Normalisation of channels, and of separate planes."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import compiled
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import (
    RUNTIME,
    Address,
    Arguments,
    Output,
    Struct,
)
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
    """A normalisation."""

    walk: ImageLoopFields
    """The planes."""
    x: Address
    """Address of the first image."""
    y: Output
    """Address of the first output, which lies as the image does; it may be the same."""
    factors: Address
    """Address of one factor for each channel."""
    offsets: Address
    """Address of the channels' offsets."""
    mean: Output
    """Address of the channels' means, which are written."""
    variance: Output
    """Address of the channels' variances."""
    inverse: Output
    """Address of the channels' inverse deviations, 1 / sqrt(variance + eps)."""


@cache
def _kernels(width: int, *, relu: bool, rest: bool) -> tuple[int, int]:
    """Return the addresses of the kernels that compute statistics and that normalise."""
    name = f"normalization{width}{'_relu' if relu else ''}{'_rest' if rest else ''}"
    parts = f"{name}_planes", name
    found = compiled(name, partial(_write, names=parts, width=width, relu=relu, rest=rest), *parts)
    return found[parts[0]], found[parts[1]]


def _write(module: Any, names: tuple[str, str], width: int, *, relu: bool, rest: bool) -> None:
    k = Kernel(module, names[0], 1, width, exported=True)
    f = ForwardFields.read(k)
    numbers, stride = counts(k, f.walk), f.walk.pixel_stride * FLOAT
    with each_plane(k, f.walk, rest=rest) as plane:
        _measure(k, f, plane, numbers, stride)
    k.done()
    k = Kernel(module, names[1], 1, width, exported=True)
    f = ForwardFields.read(k)
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
    k.done()


def _measure(k: Kernel, f: ForwardFields, plane: Plane, numbers: Counts, stride: Word) -> None:
    """Write a plane's mean and its sum of squared deviations."""
    zero, first = k.constant(0.0), f.x + plane.first
    some = minimum(f.walk.pixels, FIRST_PIXELS)
    [total] = summed(
        k, some, stride, [zero], lambda at, sums: [sums[0] + plane.load(k, first + at)]
    )
    about = total * numbers.first_pixels

    def add(at: Word, sums: Any) -> list[Vector]:
        k.prefetch(f.x + plane.following + at, 2)
        away = plane.load(k, first + at) - about
        return [sums[0] + away, fma(away, away, sums[1])]

    away, squares = summed(k, f.walk.pixels, stride, [zero, zero], add)
    by = away * numbers.each_pixel
    k.store(about + by, plane.sums)
    # rounding must not make it negative
    k.store(clamp_min(fma(-away, by, squares), zero), plane.sums + k.vector_bytes)


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

    Mean and variance are those of each channel in the batch.

    Args:
        images: Where the elements of input and output lie.
        eps: What is added to variances.
        tuning: The kernel's vectors and threads.
        relu: Whether a rectifier follows.

    Attributes:
        mean: What was measured last. Shape: (C,).
        variance: The same, over all elements of a channel. Shape: (C,).
        inverse: 1 / sqrt(variance + eps). Shape: (C,).
        rest: Whether the last vector of channels is a part of one.

    Raises:
        ValueError: Channels fill no whole vectors, or pixels do not follow each other.
    """

    kernel = "norm"

    def __init__(self, images: Images, eps: float, tuning: Tuning, *, relu: bool) -> None:
        self.images, self.eps, self.tuning, self.relu = images, eps, tuning, relu
        self.mean, self.variance, self.inverse = (aligned(images.shape[1]) for _ in range(3))
        self.sums_size, self.rest = sums_size(images, tuning.width), has_rest(images, tuning.width)
        self._kernels = _kernels(tuning.width, relu=relu, rest=self.rest)
        self._arguments = Arguments(
            ForwardFields.values(
                walk=image_loop_values(images, tuning.width, eps),
                x=RUNTIME,
                y=RUNTIME,
                factors=RUNTIME,
                offsets=RUNTIME,
                mean=self.mean,
                variance=self.variance,
                inverse=self.inverse,
            )
        )

    def __call__(
        self,
        source: np.ndarray,
        target: np.ndarray,
        factors: np.ndarray,
        offsets: np.ndarray,
        sums: np.ndarray,
    ) -> None:
        """Write ``target``, in the memory that ``images`` describes, and the statistics.

        Args:
            source: The input; it may be the target.
            target: The output.
            factors: One for each channel. Shape: (C,).
            offsets: Their offsets. Shape: (C,).
            sums: Scratch memory of :attr:`sums_size` elements.
        """
        each = {
            "x": source, "y": target, "factors": factors, "offsets": offsets, "walk.sums": sums,
        }  # fmt: skip
        for kernel in self._kernels:
            self._arguments.run(kernel, self.tuning.threads, each)


class PlaneFields(Struct):
    """Planes that are normalised separately."""

    walk: ImageLoopFields
    """The planes."""
    x: Address
    """Address of the first image."""
    y: Output
    """Address of the first output, which lies as the image does; it may be the same."""
    deviations: Output
    """Address of what each channel of each image is divided by, which is written."""


@cache
def _kernel(width: int) -> int:
    """Return the address of the kernel."""
    name = f"plane_norm{width}"
    return compiled(name, lambda module: _planes_write(module, name, width), name)[name]


def _planes_write(module: Any, name: str, width: int) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    f = PlaneFields.read(k)
    numbers, stride = counts(k, f.walk), f.walk.pixel_stride * FLOAT
    some = minimum(f.walk.pixels, FIRST_PIXELS)
    zero, row_bytes = k.constant(0.0), f.walk.groups * k.vector_bytes
    with each_plane(k, f.walk) as plane:
        first = f.x + plane.first
        [total] = summed(k, some, stride, [zero], lambda at, sums: [sums[0] + k.load(first + at)])
        about = total * numbers.first_pixels

        def add(at: Word, sums: Any) -> list[Vector]:
            away = k.load(first + at) - about
            return [sums[0] + away, fma(away, away, sums[1])]

        away, squares = summed(k, f.walk.pixels, stride, [zero, zero], add)
        by = away * numbers.each_pixel
        variance = clamp_min(fma(-away, by, squares) * numbers.each_pixel, zero)
        mean, deviation = about + by, root(variance) + numbers.eps
        k.store(deviation, f.deviations + plane.image * row_bytes + plane.channels)
        with k.loop(f.walk.pixels) as pixel:
            at = plane.first + pixel.i * stride
            k.store((k.load(f.x + at) - mean) / deviation, f.y + at)
    k.done()


class PlaneNorm(TunedKernel):
    """y = (x - mean) / (sqrt(variance) + eps), of each channel of each image; NaN stays.

    Args:
        images: Where the elements of input and output lie.
        eps: What is added to deviations.
        tuning: The kernel's vectors and threads.

    Attributes:
        deviations: What was divided by last. Shape: (N, C).

    Raises:
        ValueError: Channels fill no whole vectors, or pixels do not follow each other.
    """

    kernel = "plane norm"

    def __init__(self, images: Images, eps: float, tuning: Tuning) -> None:
        self.tuning, self._kernel = tuning, _kernel(tuning.width)
        self.deviations = aligned(images.shape[0] * images.shape[1]).reshape(images.shape[:2])
        fields = PlaneFields.values(
            walk=image_loop_values(images, tuning.width, eps),
            x=RUNTIME,
            y=RUNTIME,
            deviations=self.deviations,
        )
        self._arguments = Arguments(fields)

    def __call__(self, x: np.ndarray, y: np.ndarray) -> None:
        """Write ``y``, which may be ``x``; both are memories that ``images`` describes."""
        each: dict[str, np.ndarray | None] = {"x": x, "y": y, "walk.sums": None}
        self._arguments.run(self._kernel, self.tuning.threads, each)
