"""Factors and offsets of channels, and a rectifier after them, in one pass over images.

It is what fixed statistics of a normalisation come to. The vectors are channels.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import compiled
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import (
    EACH_CALL,
    Address,
    Arguments,
    Output,
    Struct,
)
from demitasse.backends.kernels.language.words import FLOAT, Word, chunk, fma, rectified
from demitasse.backends.kernels.tuning import Tuning

__all__ = ["ChannelFactors", "takes"]


class FactorFields(Struct):
    """Images of which each channel has a factor and an offset."""

    x: Address
    """Address of the first image."""
    y: Output
    """Address of the first output; it may be the same, where that lies as the image does."""
    factors: Address
    """Address of one factor for each channel."""
    offsets: Address
    """Address of their offsets."""
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


class ChannelFactors:
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
                x=EACH_CALL,
                y=EACH_CALL,
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

    @property
    def code(self) -> str:
        """Name of the code, with the processor's instructions."""
        return f"factors llvm:{self.tuning.instructions}"
