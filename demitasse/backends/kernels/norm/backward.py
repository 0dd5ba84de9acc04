"""The gradients of a normalisation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import (
    RUNTIME,
    Address,
    Arguments,
    OptionalAddress,
    Output,
    Struct,
)
from demitasse.backends.kernels.language.words import FLOAT, Vector, Word, choose, fma
from demitasse.backends.kernels.norm.forward import Normalization
from demitasse.backends.kernels.norm.images import (
    Counts,
    ImageLoopFields,
    Plane,
    counts,
    each_plane,
    image_loop_values,
    summed,
)
from demitasse.backends.kernels.tuning import TunedKernel

KEPT = 2
"""Vectors that a thread keeps of the channels it is at."""


class BackwardFields(Struct):
    """The gradients of a normalisation; all images have the layout of ``x``."""

    walk: ImageLoopFields
    x: Address
    """Input of the normalisation."""
    dy: Address
    dx: Output
    """Gradient of the input; may be the memory of ``dy``, as may ``behind``."""
    factors: Address
    """Factor of each channel; the channels' other numbers are arrays of the same shape."""
    offsets: Address
    mean: Address
    inverse: Address
    factor_gradients: Output
    offset_gradients: Output
    behind: OptionalAddress
    """Gradient between the norm and its factors and offsets."""


class _Channels:
    """Statistics and factors of a plane's channels."""

    def __init__(self, k: Kernel, f: BackwardFields, plane: Plane, *, relu: bool) -> None:
        self._k, self._f, self._plane = k, f, plane
        self.mean, self.inverse, self.given = (
            plane.load(k, address + plane.channels) for address in (f.mean, f.inverse, f.factors)
        )
        self.factor = self.inverse * self.given
        self._offset = plane.load(k, f.offsets + plane.channels) if relu else None

    def pixel(self, at: Word) -> tuple[Vector, Vector]:
        """Return a pixel's deviation, and the gradient that the rectifier let pass."""
        k, f, plane = self._k, self._f, self._plane
        for array in (f.x, f.dy):
            k.prefetch(array + plane.following + at, 2)
        away = plane.load(k, f.x + plane.first + at) - self.mean
        dy = plane.load(k, f.dy + plane.first + at)
        if self._offset is not None:
            zero = k.constant(0.0)
            dy = choose(fma(away, self.factor, self._offset) > zero, dy, zero)
        return away, dy


@BackwardFields.kernel("normalization_gradient_planes")
def _planes_kernel(k: Kernel, f: BackwardFields, *, relu: bool, rest: bool) -> None:
    """Write the sums of each plane's gradients, and of their products with the deviations."""
    stride = f.walk.pixel_stride * FLOAT
    with each_plane(k, f.walk, rest=rest) as plane:
        channels, zero = _Channels(k, f, plane, relu=relu), k.constant(0.0)

        def add(at: Word, sums: Sequence[Vector], channels: _Channels = channels) -> list[Vector]:
            away, dy = channels.pixel(at)
            return [sums[0] + dy, fma(away, dy, sums[1])]

        for place, total in enumerate(summed(k, f.walk.pixels, stride, [zero, zero], add)):
            k.store(total, plane.sums + place * k.vector_bytes)


@BackwardFields.kernel("normalization_gradient")
def _kernel(k: Kernel, f: BackwardFields, *, relu: bool, rest: bool, behind: bool) -> None:
    numbers, stride = counts(k, f.walk), f.walk.pixel_stride * FLOAT
    own = k.scratch(KEPT)
    with each_plane(k, f.walk, rest=rest) as plane:
        channels = _Channels(k, f, plane, relu=relu)
        with k.when(plane.begins):
            _join(k, f, plane, channels, numbers, own)
        level, slope = k.load(own), k.load(own + k.vector_bytes)
        with k.loop(f.walk.pixels) as pixel:
            at = pixel.i * stride
            away, dy = channels.pixel(at)
            slopes = fma(away, slope, fma(dy, channels.factor, level))
            plane.store(k, slopes, f.dx + plane.first + at)
            if behind:
                plane.store(k, dy * channels.given, f.behind + plane.first + at)


def _join(
    k: Kernel, f: BackwardFields, plane: Plane, channels: _Channels, numbers: Counts, own: Word
) -> None:
    """Write the gradients of factors and offsets; keep the terms for the input's gradient."""
    zero, step = k.constant(0.0), 2 * k.vector_bytes
    with k.loop(f.walk.images, vectors=[zero, zero]) as image:
        at, (total, products) = plane.all_sums + image.i * step, image.vectors
        image.vectors = [total + k.load(at), products + k.load(at + k.vector_bytes)]
    total, products = image.vectors
    products = products * channels.inverse
    by = channels.factor * numbers.each
    k.store(-(total * by), own)
    k.store(-(products * by * channels.inverse), own + k.vector_bytes)
    with k.when(plane.image < 1):
        plane.store(k, products, f.factor_gradients + plane.channels)
        plane.store(k, total, f.offset_gradients + plane.channels)


class NormalizationGradient(TunedKernel):
    """The gradients of input, factors and offsets, and perhaps the one behind the norm."""

    kernel = "norm gradient"

    def __init__(self, forward: Normalization, *, behind: bool = False) -> None:
        images, width = forward.images, forward.tuning.width
        self.tuning = forward.tuning
        flags = {"relu": forward.relu, "rest": forward.rest}
        self._kernels = _planes_kernel(width, **flags), _kernel(width, **flags, behind=behind)
        self._arguments = Arguments(
            BackwardFields.values(
                walk=image_loop_values(images, width, forward.eps),
                mean=forward.mean,
                inverse=forward.inverse,
                behind=RUNTIME if behind else None,
            )
        )

    def __call__(
        self,
        images: Sequence[np.ndarray],
        parameters: tuple[np.ndarray, np.ndarray],
        gradients: tuple[np.ndarray, np.ndarray],
        sums: np.ndarray,
        behind: np.ndarray | None = None,
    ) -> None:
        """Write the gradients.

        Args:
            images: The input, the output's gradient and the input's, which may be the same memory.
            parameters: Factors and offsets. Shapes: (C,), (C,).
            gradients: Gradients of the parameters. Shapes: (C,), (C,).
            sums: Scratch memory of ``forward.sums_size`` elements.
            behind: The gradient behind the norm, or None; may be the output's memory.
        """
        names = "factors", "offsets", "factor_gradients", "offset_gradients", "walk.sums"
        each = dict(zip(("x", "dy", "dx"), images, strict=True))
        each |= dict(zip(names, (*parameters, *gradients, sums), strict=True))
        if behind is not None:
            each["behind"] = behind
        for kernel in self._kernels:
            self._arguments.run(kernel, self.tuning.threads, each)
