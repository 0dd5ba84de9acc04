"""The gradients of a normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from demitasse.backends.kernels.language import compiled
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

KEPT = 2
"""Vectors that a thread keeps of the channels it is at."""


class BackwardFields(Struct):
    """The gradients of a normalisation."""

    walk: ImageLoopFields
    """The planes."""
    x: Address
    """Address of the first image, before the normalisation."""
    dy: Address
    """Address of the first gradient of the output; all lie alike."""
    dx: Output
    """Address of the first gradient of the input; it may be the same."""
    factors: Address
    """Address of one factor for each channel."""
    offsets: Address
    """Address of the channels' offsets."""
    mean: Address
    """Address of the channels' means."""
    inverse: Address
    """Address of the channels' inverse deviations."""
    factor_gradients: Output
    """Address of the gradients of factors, which are written."""
    offset_gradients: Output
    """Address of the gradients of offsets, which are written."""
    behind: OptionalAddress
    """Address of the first gradient behind the norm, before factors and offsets, which is written
    where it is wanted; it may be the output's."""


@cache
def _kernels(width: int, *, relu: bool, rest: bool, behind: bool) -> tuple[int, int]:
    """Return the addresses of the kernels that sum over planes and that write gradients."""
    relu_and_rest = f"{'_relu' if relu else ''}{'_rest' if rest else ''}"
    sums = f"normalization_gradient_planes{width}{relu_and_rest}"
    write_sums = partial(_write_sums, name=sums, width=width, relu=relu, rest=rest)
    name = f"normalization_gradient{width}{relu_and_rest}{'_behind' if behind else ''}"
    write = partial(_write, name=name, width=width, relu=relu, rest=rest, behind=behind)
    return compiled(sums, write_sums, sums)[sums], compiled(name, write, name)[name]


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


def _write_sums(module: Any, name: str, width: int, *, relu: bool, rest: bool) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    f = BackwardFields.read(k)
    stride = f.walk.pixel_stride * FLOAT
    with each_plane(k, f.walk, rest=rest) as plane:
        _sum_up(k, plane, _Channels(k, f, plane, relu=relu), f.walk.pixels, stride)
    k.done()


def _write(
    module: Any,
    name: str,
    width: int,
    *,
    relu: bool,
    rest: bool,
    behind: bool,
) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    f = BackwardFields.read(k)
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
    k.done()


def _sum_up(k: Kernel, plane: Plane, channels: _Channels, pixels: Word, stride: Word) -> None:
    """Write the sums of a plane's gradients, and of their products with the deviations."""

    def add(at: Word, sums: Any) -> list[Vector]:
        away, dy = channels.pixel(at)
        return [sums[0] + dy, fma(away, dy, sums[1])]

    zero = k.constant(0.0)
    for place, total in enumerate(summed(k, pixels, stride, [zero, zero], add)):
        k.store(total, plane.sums + place * k.vector_bytes)


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


class NormalizationGradient:
    """The gradients of input, factors and offsets.

    Args:
        forward: The normalisation, whose statistics are read.
        behind: Whether the gradient behind the norm is wanted too, before factors and offsets.
    """

    def __init__(self, forward: Normalization, *, behind: bool = False) -> None:
        images, width = forward.images, forward.tuning.width
        self.forward = forward
        self._kernels = _kernels(width, relu=forward.relu, rest=forward.rest, behind=behind)
        self._arguments = Arguments(
            BackwardFields.values(
                walk=image_loop_values(images, width, forward.eps),
                x=RUNTIME,
                dy=RUNTIME,
                dx=RUNTIME,
                factors=RUNTIME,
                offsets=RUNTIME,
                mean=forward.mean,
                inverse=forward.inverse,
                factor_gradients=RUNTIME,
                offset_gradients=RUNTIME,
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
            gradients: For theirs. Shapes: (C,), (C,).
            sums: Scratch memory of ``forward.sums_size`` elements.
            behind: For the gradient behind the norm, where it is wanted; it may be the memory of
                the output's.
        """
        names = "factors", "offsets", "factor_gradients", "offset_gradients", "walk.sums"
        each = dict(zip(("x", "dy", "dx"), images, strict=True))
        each |= dict(zip(names, (*parameters, *gradients, sums), strict=True))
        if behind is not None:
            each["behind"] = behind
        for kernel in self._kernels:
            self._arguments.run(kernel, self.forward.tuning.threads, each)

    @property
    def code(self) -> str:
        """Name of the code, with the processor's instructions."""
        return f"norm gradient llvm:{self.forward.tuning.instructions}"
