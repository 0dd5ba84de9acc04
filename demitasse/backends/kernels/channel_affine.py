"""Factors and offsets of channels: y = x * a + b, and channel scales of each image.

A normalisation with fixed statistics has this form. The vectors are channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from demitasse.backends.kernels.images import Images
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
from demitasse.backends.kernels.language.words import FLOAT, Vector, Word, chunk, fma, rectified
from demitasse.backends.kernels.norm.images import (
    ImageLoopFields,
    each_plane,
    image_loop_values,
    summed,
)
from demitasse.backends.kernels.tuning import TunedKernel, Tuning


class FactorFields(Struct):
    """Images with a factor and an offset for each channel."""

    x: Address
    """Address of the first image."""
    y: Output
    """Address of the first output, possibly of the image in the same layout."""
    factors: Address
    """Address of one factor for each channel."""
    offsets: Address
    """Address of the channels' offsets."""
    images: Word
    """Number of images."""
    blocks: Word
    """Blocks of contiguous channels of an image."""
    rows: Word
    """Rows of an image."""
    columns: Word
    """Columns of an image."""
    block_channels: Word
    """Channels of a block, whole vectors of them."""
    image_stride: Word
    """Elements from one image to the next."""
    block_stride: Word
    """Elements from one block to the next."""
    row_stride: Word
    """Elements from one row to the next."""
    column_stride: Word
    """Elements from one column to the next."""
    y_image_stride: Word
    """The same of the output: from one image to the next."""
    y_block_stride: Word
    """From one block to the next."""
    y_row_stride: Word
    """From one row to the next."""
    y_column_stride: Word
    """From one column to the next."""


@cache
def _kernel(width: int) -> int:
    """Return the address of the kernel."""
    name = f"channel_factors{width}"
    return compiled(name, lambda module: _write(module, name, width), name)[name]


def _write(module: Any, name: str, width: int) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    f = FactorFields.read(k)
    none = k.constant(0.0)  # of what is below 0
    block_bytes = f.block_channels * FLOAT
    begin, end = chunk(f.images * f.blocks * f.rows, *k.thread())
    with k.loop(end, begin) as line:
        row, block = line.i % f.rows, line.i // f.rows % f.blocks
        image = line.i // f.rows // f.blocks
        first = image * f.image_stride + block * f.block_stride + row * f.row_stride
        y_first = image * f.y_image_stride + block * f.y_block_stride + row * f.y_row_stride
        factors, offsets = f.factors + block * block_bytes, f.offsets + block * block_bytes
        with k.loop(f.columns) as column:
            source = f.x + (first + column.i * f.column_stride) * FLOAT
            target = f.y + (y_first + column.i * f.y_column_stride) * FLOAT
            with k.loop(block_bytes, 0, k.vector_bytes) as place:
                factor, offset = k.load(factors + place.i), k.load(offsets + place.i)
                value = fma(k.load(source + place.i), factor, offset)
                k.store(rectified(value, none), target + place.i)
    k.done()


def takes(images: Images, width: int) -> bool:
    """Return whether images have whole vectors of contiguous channels; for each is written once."""
    return bool(width) and images.fits(width) and images.block % width == 0


class ChannelFactors(TunedKernel):
    """y = max(x * factor + offset, 0), channel by channel; NaN stays.

    Args:
        images: Where the elements of the input lie, and where those of the output, which has the
            same blocks of channels.
        factors: One for each channel; read in each call. Shape: (C,).
        offsets: Their offsets. Shape: (C,).
        tuning: The kernel's vectors and threads.

    Raises:
        ValueError: Channels fill no whole vectors, or the blocks differ.
    """

    kernel = "factors"

    def __init__(
        self,
        images: tuple[Images, Images],
        factors: np.ndarray,
        offsets: np.ndarray,
        tuning: Tuning,
    ) -> None:
        x, y = images
        if not takes(x, tuning.width) or (x.shape, x.block) != (y.shape, y.block):
            message = (
                f"{x.shape[1]} channels in blocks of {x.block} and {y.block} were given; give "
                f"whole vectors of {tuning.width}, the same ones"
            )
            raise ValueError(message)
        self.tuning = tuning
        self._kernel = _kernel(tuning.width)
        n, c, h, w = x.shape
        self._arguments = Arguments(
            FactorFields.values(
                x=RUNTIME,
                y=RUNTIME,
                factors=factors,
                offsets=offsets,
                images=n,
                blocks=c // x.block,
                rows=h,
                columns=w,
                block_channels=x.block,
                image_stride=x.image_stride,
                block_stride=x.block_stride,
                row_stride=x.row_stride,
                column_stride=x.column_stride,
                y_image_stride=y.image_stride,
                y_block_stride=y.block_stride,
                y_row_stride=y.row_stride,
                y_column_stride=y.column_stride,
            )
        )

    def __call__(self, source: np.ndarray, target: np.ndarray) -> None:
        """Write ``target``; both are the memories that ``images`` describes."""
        self._arguments.run(self._kernel, self.tuning.threads, {"x": source, "y": target})


class GateFields(Struct):
    """Images and gates, and their product; all images lie alike."""

    walk: ImageLoopFields
    """The planes."""
    x: Address
    """Address of the first image."""
    gates: Address
    """Address of the first image's gates."""
    added: OptionalAddress
    """Address of the first image of those that are added to the product, if some are."""
    y: Output
    """Address of the first result; it may be one of the images."""


class GradientFields(Struct):
    """Images and gates, and their gradients; all images lie alike."""

    walk: ImageLoopFields
    """The planes."""
    x: Address
    """Address of the first image."""
    gates: Address
    """Address of the first image's gates."""
    dy: Address
    """Address of the first gradient of the product."""
    dx: Output
    """Address of the first gradient of the images; it may be the same."""
    added: OptionalAddress
    """Address of the first gradient of what was added to the product, if something was."""
    gate_gradients: Output
    """Address of those of the first image's gates."""


ARRAYS = "x", "gates", "added", "y"
GRADIENT_ARRAYS = "x", "gates", "dy", "dx", "added", "gate_gradients"
"""Fields that change from call to call."""


@cache
def _gates_kernel(width: int, *, gradient: bool, adds: bool, rest: bool) -> int:
    """Return the address of the kernel.

    Args:
        width: Floats of a vector.
        gradient: Whether it computes the gradients.
        adds: Whether something is added to the product.
        rest: Whether the last vector of channels is a part of one.
    """
    options = f"{'_adds' if adds else ''}{'_rest' if rest else ''}"
    name = f"gate{'_gradient' if gradient else 's'}{width}{options}"
    write = _write_gradient if gradient else _gates_write
    write = partial(write, name=name, width=width, adds=adds, rest=rest)
    return compiled(name, write, name)[name]


def _gates_write(module: Any, name: str, width: int, *, adds: bool, rest: bool) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    f = GateFields.read(k)
    stride, row_bytes = f.walk.pixel_stride * FLOAT, f.walk.channels * FLOAT
    with each_plane(k, f.walk, rest=rest) as plane:
        gate = plane.load(k, f.gates + plane.image * row_bytes + plane.channels)
        with k.loop(f.walk.pixels) as pixel:
            here = plane.first + pixel.i * stride
            value = plane.load(k, f.x + here) * gate
            if adds:
                value = value + plane.load(k, f.added + here)
            plane.store(k, value, f.y + here)
    k.done()


def _write_gradient(module: Any, name: str, width: int, *, adds: bool, rest: bool) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    f = GradientFields.read(k)
    stride, row_bytes = f.walk.pixel_stride * FLOAT, f.walk.channels * FLOAT
    with each_plane(k, f.walk, rest=rest) as plane:
        channels = plane.image * row_bytes + plane.channels
        gate = plane.load(k, f.gates + channels)

        def step(at: Word, sums: Sequence[Vector]) -> list[Vector]:
            for array in (f.x, f.dy):
                k.prefetch(array + plane.following + at, 2)
            here = plane.first + at
            x, dy = plane.load(k, f.x + here), plane.load(k, f.dy + here)
            plane.store(k, dy * gate, f.dx + here)
            if adds:
                plane.store(k, dy, f.added + here)
            return [fma(x, dy, sums[0])]

        [total] = summed(k, f.walk.pixels, stride, [k.constant(0.0)], step)
        plane.store(k, total, f.gate_gradients + channels)
    k.done()


class _Planes(TunedKernel):
    """A kernel that walks over the planes of images and of their gates.

    Args:
        images: Where the elements of all images lie.
        tuning: The kernel's vectors and threads.
        gradient: Whether it computes the gradients.
        adds: Whether something is added to the product.

    Raises:
        ValueError: Channels have no vectors, or pixels do not follow each other.
    """

    kernel = "gates"

    def __init__(self, images: Images, tuning: Tuning, *, gradient: bool, adds: bool) -> None:
        self.tuning, width = tuning, tuning.width
        rest = images.block % width > 0
        self._kernel = _gates_kernel(width, gradient=gradient, adds=adds, rest=rest)
        names = GRADIENT_ARRAYS if gradient else ARRAYS
        walk = image_loop_values(images, width, eps=0.0)
        fields = GradientFields if gradient else GateFields
        self._arguments = Arguments(fields.values(walk=walk, **dict.fromkeys(names, RUNTIME)))

    def _run(self, **arrays: np.ndarray | None) -> None:
        """Run the kernel over these arrays; None for an absent array."""
        self._arguments.run(self._kernel, self.tuning.threads, {**arrays, "walk.sums": None})


class Gates(_Planes):
    """y = x * gate + other, or without the other; products and sums are rounded by themselves.

    Args:
        images: Where the elements of ``x``, ``y`` and the other lie.
        tuning: The kernel's vectors and threads.
        adds: Whether there is another.

    Raises:
        ValueError: Channels have no vectors, or pixels do not follow each other.
    """

    def __init__(self, images: Images, tuning: Tuning, *, adds: bool) -> None:
        super().__init__(images, tuning, gradient=False, adds=adds)

    def __call__(
        self, x: np.ndarray, gates: np.ndarray, added: np.ndarray | None, y: np.ndarray
    ) -> None:
        """Write ``y``; images are memories that ``images`` describes. Shape of gates: (N, C)."""
        self._run(x=x, gates=gates, added=added, y=y)


class GateGradient(_Planes):
    """Gradients of y = x * gate + other: dx = dy * gate, dgate = sum(x * dy), dother = dy.

    Args:
        images: Where the elements of ``x``, ``y`` and their gradients lie.
        tuning: The kernel's vectors and threads.
        adds: Whether there is another.

    Raises:
        ValueError: Channels have no vectors, or pixels do not follow each other.
    """

    def __init__(self, images: Images, tuning: Tuning, *, adds: bool) -> None:
        super().__init__(images, tuning, gradient=True, adds=adds)

    def __call__(
        self,
        x: np.ndarray,
        gates: np.ndarray,
        dy: np.ndarray,
        gradients: tuple[np.ndarray, np.ndarray, np.ndarray | None],
    ) -> None:
        """Write the gradients of ``x``, of the gates, and of what was added, if something was.

        Images are memories that ``images`` describes. Shape of gates and their gradients: (N, C).
        """
        dx, gate_gradients, added = gradients
        self._run(x=x, gates=gates, dy=dy, dx=dx, added=added, gate_gradients=gate_gradients)
