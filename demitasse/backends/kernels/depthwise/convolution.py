"""A depthwise convolution of images whose channels are contiguous, in blocks or all."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.depthwise.strips import Strips
from demitasse.backends.kernels.depthwise.windows import (
    PIXELS,
    Channels,
    Shape,
    write_block_lines,
    write_lines,
    write_row,
)
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import compiled
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import EACH_CALL, Address, Arguments
from demitasse.backends.kernels.language.words import FLOAT, INT, Word, choose, chunk
from demitasse.backends.kernels.rectifier import NOTHING, Rectifier
from demitasse.backends.kernels.windows import OutputFields, WindowFields, window_values

__all__ = [
    "DepthwiseConvolution",
    "DepthwiseFields",
    "DepthwiseOperands",
    "next_group",
    "write_strip",
]

COLUMNS = 4
"""Integers of an entry of the table of groups."""


class DepthwiseFields(WindowFields):
    """A depthwise convolution."""

    y: OutputFields
    """The output."""

    filters: Address
    """Address of the filters: for each vector, tap after tap."""
    offsets: Address
    """Address of one offset for each channel."""
    rectifier: Address
    """Address of the rectifier's numbers: one slope for each channel, or the limits of all."""
    groups: Word
    """Number of groups of channels."""
    group_table: Address
    """Address of their table: for each, elements from the beginning of an input pixel and of an
    output pixel to its first channel; its first vector; and how many channels it has."""


@cache
def _kernel(width: int, shape: Shape) -> int:
    """Return the address of the kernel."""
    name = f"depthwise{width}_{shape}"
    return compiled(name, lambda module: _write(module, name, width, shape), name)[name]


def _write(module: Any, name: str, width: int, shape: Shape) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    f = DepthwiseFields.read(k)
    begin, end = chunk(f.groups * f.images * f.y.rows, *k.thread())
    with k.loop(end, begin) as strip:
        group, place = strip.i % f.groups, strip.i // f.groups
        image, line = place // f.y.rows, place % f.y.rows
        output = f.y.at + (image * f.y.image_stride + line * f.y.row_stride) * FLOAT
        write_strip(k, f, shape, group, place, output, f.y.column_stride * FLOAT)
    k.done()


def write_strip(
    k: Kernel,
    f: DepthwiseFields,
    shape: Shape,
    group: Word,
    place: Word,
    output: Word,
    output_bytes: Word,
    line_bytes: Sequence[Word | int] | None = None,
    *,
    in_blocks: bool = False,
) -> None:
    """Write a row of outputs of one group of channels, or several.

    Args:
        k: The kernel.
        f: Its fields.
        shape: What its code depends on.
        group: The group.
        place: The row, of those of all images.
        output: Address of the first output of the row, with all its channels.
        output_bytes: Bytes from one output to the next.
        line_bytes: For each of several rows, bytes from the outputs of the first to its own, as
            :func:`write_lines` takes them; None for one row of any length.
        in_blocks: Whether it is as :func:`write_block_lines` takes it.
    """
    taps_bytes = shape.kernel[0] * shape.kernel[1] * k.vector_bytes
    x, y, vector, count = k.load_words(f.group_table + group * (COLUMNS * INT), COLUMNS)
    channels = Channels(
        bytes=count * FLOAT,
        filters=f.filters + vector * taps_bytes,
        offsets=f.offsets + vector * k.vector_bytes,
        rectifier=f.rectifier if shape.limited else f.rectifier + vector * k.vector_bytes,
        later=next_group(k, f) * FLOAT,
    )
    row = f.row(place)
    row = row._replace(
        image=row.image + x * FLOAT, output=output + y * FLOAT, output_bytes=output_bytes
    )
    if line_bytes is None:
        write_row(k, shape, row, channels)
    elif in_blocks:
        write_block_lines(k, shape, row, channels, line_bytes)
    else:
        write_lines(k, shape, row, channels, line_bytes)


def next_group(k: Kernel, f: DepthwiseFields) -> Word:
    """Return elements of the input from one group of channels to the next; 0 if there is one."""
    return k.load_word(f.group_table + choose(f.groups > 1, COLUMNS * INT, 0))


class DepthwiseOperands:
    """Operands of a depthwise convolution.

    Args:
        strips: The convolution.
        x: The input.
        y: The output.
        then: What becomes of the sums.

    Attributes:
        filters: The filters of each vector, tap after tap. Shape: (vectors, taps, width).
        none: Zeros in place of offsets. Shape: (C,).
        values: For the kernel. With each call it is given ``x.at``, ``y.at`` and ``offsets``.

    Raises:
        ValueError: Channels are not contiguous.
    """

    def __init__(self, strips: Strips, x: Images, y: Images, then: Rectifier) -> None:
        self._strips, width, op = strips, strips.width, strips.op
        x.vectors(width), y.vectors(width)
        (_, channels, _, _), groups = strips.x, strips.groups(x, y)
        self._taps = op.kernel[0] * op.kernel[1]
        self.filters = aligned(len(strips.vectors) * self._taps * width).reshape(
            -1, self._taps, width
        )
        self._order = np.add.outer(strips.vectors, np.arange(width))
        self.none, self._rectifier = aligned(channels), then.numbers(channels)
        side_by_side = Shape.of(op).span(PIXELS[width]) * width
        # a group of less than a vector begins early
        zeros = aligned(width + max(channels, side_by_side))
        table = np.array([(g.x, g.y, g.vector, g.channels) for g in groups], np.int64)
        self.values = DepthwiseFields.values(
            **window_values(op, x, y, zeros[width:]),
            filters=self.filters,
            offsets=EACH_CALL,
            rectifier=self._rectifier,
            groups=len(groups),
            group_table=table,
        )

    def update(self, weights: np.ndarray) -> None:
        """Take new weights, in C order."""
        by_channel = weights[: self._strips.x[1] * self._taps].reshape(-1, self._taps)
        self.filters[...] = by_channel[self._order].transpose(0, 2, 1)

    def take_slopes(self, slopes: np.ndarray) -> None:
        """Take new slopes for what is below 0, one for each channel, or one for all."""
        self._rectifier[...] = slopes


class DepthwiseConvolution:
    """A depthwise convolution, with an offset for each channel and perhaps a rectifier.

    Args:
        strips: The convolution.
        x: The input.
        y: The output.
        then: What becomes of the sums.

    Raises:
        ValueError: Channels are not contiguous.
    """

    def __init__(self, strips: Strips, x: Images, y: Images, then: Rectifier = NOTHING) -> None:
        self.strips = strips
        shape = Shape.of(strips.op, fetches=strips.fetches(x, y), limited=then.limited)
        self._kernel = _kernel(strips.width, shape)
        self._operands = DepthwiseOperands(strips, x, y, then)
        self._arguments = Arguments(self._operands.values)

    @property
    def filters(self) -> np.ndarray:
        """The filters of each vector, tap after tap. Shape: (vectors, taps, width)."""
        return self._operands.filters

    def update(self, weights: np.ndarray) -> None:
        """Take new weights, in C order."""
        self._operands.update(weights)

    def take_slopes(self, slopes: np.ndarray) -> None:
        """Take new slopes for what is below 0, one for each channel, or one for all."""
        self._operands.take_slopes(slopes)

    def __call__(self, source: np.ndarray, target: np.ndarray, offsets: np.ndarray | None) -> None:
        """Convolve.

        Args:
            source: The images, in the memory that ``x`` describes.
            target: The output, in the memory that ``y`` describes.
            offsets: One for each channel, contiguous; None for zeros.
        """
        each = {
            "x.at": source,
            "y.at": target,
            "offsets": self._operands.none if offsets is None else offsets,
        }
        self._arguments.run(self._kernel, self.strips.tuning.threads, each)

    @property
    def code(self) -> str:
        """Name of what runs."""
        return self.strips.code
