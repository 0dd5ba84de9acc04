"""Channels of each image that are multiplied with a number of their own, and perhaps added to.

What the gates of squeeze and excitation do. The vectors are channels.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import compiled
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import EACH_CALL, Arguments, Struct
from demitasse.backends.kernels.language.words import FLOAT, Word, chunk
from demitasse.backends.kernels.tuning import Tuning

__all__ = ["GatedChannels", "takes"]


class GateFields(Struct):
    """Images that lie alike, and the gates of their channels."""

    x: Word
    """Address of the first image."""
    other: Word
    """Address of the first image that is added; that of ``x`` where none is."""
    y: Word
    """Address of the first output, which may be one of them."""
    gates: Word
    """Address of a number for each channel of each image."""
    images: Word
    """How many images there are."""
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


@cache
def _kernel(width: int, *, adds: bool) -> int:
    """Return the address of the kernel."""
    name = f"gated_channels{width}{'_sum' if adds else ''}"
    return compiled(name, lambda module: _write(module, name, width, adds=adds), name)[name]


def _write(module: Any, name: str, width: int, *, adds: bool) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    f = GateFields.read(k)
    block_bytes = f.block_channels * FLOAT
    begin, end = chunk(f.images * f.blocks * f.rows, *k.thread())
    with k.loop(end, begin) as line:
        row, plane = line.i % f.rows, line.i // f.rows
        image, block = plane // f.blocks, plane % f.blocks
        first = image * f.image_stride + block * f.block_stride + row * f.row_stride
        gates = f.gates + plane * block_bytes
        with k.loop(f.columns) as column:
            at = (first + column.i * f.column_stride) * FLOAT
            with k.loop(block_bytes, 0, k.vector_bytes) as place:
                here = at + place.i
                value = k.load(f.x + here) * k.load(gates + place.i)
                k.store(value + k.load(f.other + here) if adds else value, f.y + here)
    k.done()


def takes(images: Images, width: int) -> bool:
    """Return whether images have whole vectors of contiguous channels; for each is written once."""
    return bool(width) and images.fits(width) and images.block % width == 0


class GatedChannels:
    """y = x * gate, or x * gate + other, each channel of each image with its gate.

    Args:
        images: Where the elements of all arrays lie.
        tuning: The kernel's vectors and threads.
        adds: Whether there is another array.

    Raises:
        ValueError: Channels fill no whole vectors.
    """

    def __init__(self, images: Images, tuning: Tuning, *, adds: bool) -> None:
        if not takes(images, tuning.width):
            message = (
                f"{images.shape[1]} channels in blocks of {images.block} were given; give whole "
                f"vectors of {tuning.width}"
            )
            raise ValueError(message)
        self.tuning = tuning
        self._kernel = _kernel(tuning.width, adds=adds)
        n, c, h, w = images.shape
        self._arguments = Arguments(
            GateFields.values(
                x=EACH_CALL,
                other=EACH_CALL,
                y=EACH_CALL,
                gates=EACH_CALL,
                images=n,
                blocks=c // images.block,
                rows=h,
                columns=w,
                block_channels=images.block,
                image_stride=images.image_stride,
                block_stride=images.block_stride,
                row_stride=images.row_stride,
                column_stride=images.column_stride,
            )
        )

    def __call__(
        self, gates: np.ndarray, x: np.ndarray, other: np.ndarray | None, y: np.ndarray
    ) -> None:
        """Write ``y``; all but the gates are memories that ``images`` describes.

        Args:
            gates: One for each channel of each image. Shape: (N * C,).
            x: What is multiplied.
            other: What is added; None where nothing is.
            y: The output, which may be one of them.
        """
        each = {"x": x, "other": x if other is None else other, "y": y, "gates": gates}
        self._arguments.run(self._kernel, self.tuning.threads, each)

    @property
    def code(self) -> str:
        """Name of the code, with the processor's instructions."""
        return f"gates llvm:{self.tuning.instructions}"
