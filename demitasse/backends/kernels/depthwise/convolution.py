"""Depthwise convolution: register tiles of windows, and the kernel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.depthwise import DepthwiseSchedule
from demitasse.backends.kernels.epilogue import NOTHING, Rectifier
from demitasse.backends.kernels.images import Images, need_layout
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.target import is_x86
from demitasse.backends.kernels.language.values import FLOAT, Word, choose, chunk, fma, minimum
from demitasse.backends.kernels.tiles import Inside, for_each_tile
from demitasse.backends.kernels.windows import (
    ConvolutionFields,
    WindowCode,
    WindowConvolution,
    columns_read,
    window_values,
)


class DepthwiseFields(ConvolutionFields):
    """A depthwise convolution."""

    vectors: Word
    parts: Word
    """Parts of the channels, which threads divide."""


@DepthwiseFields.kernel("depthwise")
def _kernel(k: Kernel, f: DepthwiseFields, code: WindowCode) -> None:
    with k.parallel_loop(f.x.images, f.y.rows, f.parts) as (image, row, part):
        output = f.y.row(image, row)
        vectors = chunk(f.vectors, part, f.parts)
        write_row(k, f, code, image, row, vectors, output, prefetches=True)


def write_row(
    k: Kernel, f: DepthwiseFields, code: WindowCode, image: Word, row: Word,
    vectors: tuple[Word, Word], output: Word, *, prefetches: bool = False,
) -> None:  # fmt: skip
    """Write some vectors of channels of a row of an image's outputs, to the address of the row.

    With ``prefetches``, later tiles of the last row of windows and of the outputs are prefetched.
    """
    ys = [row * f.step_down - f.top + f.down * i for i in range(code.rows)]
    rows = [choose((y > -1) & (y < f.x.rows), f.x.row(image, y), f.zeros) for y in ys]

    x_step, y_step = (images.column_stride * FLOAT for images in (f.x, f.y))

    def body(first: Word, inside: Inside) -> None:
        column = (first * code.tile.stride - f.left) * x_step
        tile = output + first * y_step
        if prefetches:
            _prefetch_tile(k, rows[-1] + column, x_step * (code.tile.pixels * code.tile.stride))
            _prefetch_tile(k, tile, y_step * code.tile.pixels)
        _sum_windows(k, f, code, vectors, [row + column for row in rows], tile, *inside)

    for_each_tile(k, f.tiles, code.tiles, body)


AHEAD = 4
"""Prefetch distance, in register tiles."""


def _prefetch_tile(k: Kernel, tile: Word, size: Word) -> None:
    """Prefetch a later tile; ``size`` bytes after this tile follows the next one.

    Processors themselves prefetch too few pixels, for those of a tile are read and written by
    vectors of channels, not in the order of their addresses.
    """
    with k.each_line(tile + size * AHEAD, size) as line:
        k.prefetch(line, cache=2)


def _sum_windows(
    k: Kernel, f: DepthwiseFields, code: WindowCode, vectors: tuple[Word, Word],
    rows: Sequence[Word], output: Word, inside: range,
) -> None:  # fmt: skip
    """Write the sums of a tile of windows, vector after vector of channels.

    ``rows`` are addresses of the first column in the rows of the input, which may be outside;
    ``inside`` are the columns that are not.
    """
    pixels, wide, stride, dilation = code.tile
    x_step, y_step = (images.column_stride * FLOAT for images in (f.x, f.y))
    first, last = (vector * k.vector_bytes for vector in vectors)
    last_place = (f.x.channels - k.width) * FLOAT
    zero = k.constant(0.0)
    again = (lambda word: word) if is_x86() else k.no_cse
    with k.loop(last, first, k.vector_bytes) as vector:
        place = minimum(vector.i, last_place)  # begins early where channels fill no whole vectors
        filters = f.filters + vector.i * (code.rows * wide)
        offset = f.offsets + place  # which NEON loads faster than it copies
        sums = [k.load(again(offset)) for _ in range(pixels)]
        for i, row in enumerate(rows):
            numbers = {
                j: k.load(row + x_step * j + place) if j in inside else zero
                for j in columns_read(code.tile)
            }
            for tap in range(wide):
                weight = k.load(filters + (i * wide + tap) * k.vector_bytes)
                sums = [
                    fma(numbers[pixel * stride + tap * dilation], weight, total)
                    for pixel, total in enumerate(sums)
                ]
        then = code.rectifying(k, f.rectifier, place)
        for pixel, total in enumerate(sums):
            k.store(then(total), output + y_step * pixel + place)


class DepthwiseFilters:
    """Filters of a depthwise convolution.

    Attributes:
        order: The place of each weight in C order. Shape: (vectors, taps, width).
        filters: The filters of each vector, tap after tap, in the same shape.
        nbytes: Bytes of the filters.
    """

    def __init__(self, strips: DepthwiseSchedule) -> None:
        taps = strips.op.kernel[0] * strips.op.kernel[1]
        by_channel = np.arange(strips.x[1] * taps).reshape(-1, taps)
        channels = np.add.outer(strips.vectors, np.arange(strips.width))
        self.order = by_channel[channels].transpose(0, 2, 1).copy()
        self.filters = aligned(self.order.size).reshape(self.order.shape)
        self.nbytes = self.filters.nbytes

    def update(self, weights: np.ndarray) -> None:
        """Copy new weights, given in C order."""
        np.take(weights, self.order, out=self.filters, mode="clip")


class DepthwiseOperands(DepthwiseFilters):
    """Operands of a depthwise convolution.

    Attributes:
        values: Fields of the kernel; ``x.at``, ``y.at`` and ``offsets`` are given with each call.

    Raises:
        ValueError: Channels of ``x`` or ``y`` are not contiguous.
    """

    def __init__(self, strips: DepthwiseSchedule, x: Images, y: Images, then: Rectifier) -> None:
        channels = strips.x[1]
        need_layout(x.fits(channels) and y.fits(channels), x, y)
        super().__init__(strips)
        self.rectifier = then.numbers(channels)
        self.values = DepthwiseFields.values(
            **window_values(strips.op, x, y, strips.tiles),
            filters=self.filters,
            rectifier=self.rectifier,
            vectors=len(strips.vectors),
            parts=strips.parts,
        )


class DepthwiseConvolution(WindowConvolution):
    """A depthwise convolution, with an offset for each channel and an epilogue.

    ``filters``, ``nbytes`` and ``update`` are those of the operands.
    """

    def __init__(
        self, strips: DepthwiseSchedule, x: Images, y: Images, then: Rectifier = NOTHING
    ) -> None:
        each = DepthwiseOperands(strips, x, y, then)
        self.filters, self.nbytes, self.update = each.filters, each.nbytes, each.update
        kernel = _kernel(strips.width, strips.code_with(then))
        super().__init__(strips, kernel, each.values, each.rectifier)
