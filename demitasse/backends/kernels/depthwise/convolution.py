"""Depthwise convolution: register tiles of windows, and the kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.depthwise import DepthwiseSchedule
from demitasse.backends.kernels.epilogue import NOTHING, Rectifier, rectifying
from demitasse.backends.kernels.image_fields import OutputFields
from demitasse.backends.kernels.images import Images, need_layout
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address
from demitasse.backends.kernels.language.target import is_x86
from demitasse.backends.kernels.language.values import (
    FLOAT,
    INT,
    Condition,
    Word,
    choose,
    chunk,
    fma,
    minimum,
)
from demitasse.backends.kernels.windows import (
    RegisterTile,
    Row,
    WindowConvolution,
    WindowFields,
    columns_read,
    window_values,
)


class DepthwiseFields(WindowFields):
    """A depthwise convolution."""

    y: OutputFields
    filters: Address
    """Filters: for each vector, tap after tap."""
    offsets: Address
    """One offset for each channel."""
    rectifier: Address
    """Numbers of the epilogue: one slope for each channel, or the limits."""
    channels: Word
    vectors: Word
    parts: Word
    """Parts of the channels, which threads divide."""


class Shape(NamedTuple):
    """Parameters of a convolution that the kernel's code depends on.

    Attributes:
        rows: Rows of a window.
        fetched: Rows of the input from one row of windows to the next, which are prefetched; 0 for
            none.
    """

    rows: int
    tile: RegisterTile
    fetched: int
    limited: bool

    @classmethod
    def of(cls, strips: DepthwiseSchedule, then: Rectifier, *, fetches: bool = False) -> Shape:
        """Return the shape of a convolution with an epilogue."""
        op = strips.op
        return cls(op.kernel[0], strips.tile, op.stride[0] if fetches else 0, then.limited)

    def __str__(self) -> str:
        fetching = f"_fetching{self.fetched}" if self.fetched else ""
        return f"{self.rows}x{self.tile}" + fetching + "_limited" * self.limited


@DepthwiseFields.kernel("depthwise")
def _kernel(k: Kernel, f: DepthwiseFields, shape: Shape) -> None:
    begin, end = chunk(f.images * f.y.rows * f.parts, *k.thread())
    with k.loop(end, begin) as strip:
        vectors = chunk(f.vectors, strip.i % f.parts, f.parts)
        write_rows(k, f, shape, f.row(strip.i // f.parts), vectors)


def write_rows(
    k: Kernel, f: DepthwiseFields, shape: Shape, row: Row, vectors: tuple[Word, Word],
    line_bytes: Sequence[Word | int] = (0,),
) -> None:  # fmt: skip
    """Write some vectors of channels of a row, or of several that see rows side by side.

    For each row, ``line_bytes`` has the bytes from the outputs of the first row; several rows have
    neither strides nor dilation. The last tile begins early.
    """
    tile, rows = shape.tile, shape.rows + len(line_bytes) - 1
    seen = [row.top + row.down * i for i in range(rows)]
    lines = [((y > -1) & (y < row.height), row.image + y * row.row_bytes) for y in seen]
    with k.loop(row.columns, 0, tile.pixels) as few:
        first = minimum(few.i, row.columns - tile.pixels)
        column, output = first * tile.stride - row.left, row.output + first * row.output_bytes
        targets = [
            [output + line + row.output_bytes * pixel for pixel in range(tile.pixels)]
            for line in line_bytes
        ]
        later = (column + tile.pixels * tile.stride * AHEAD) * row.column_bytes
        fetched = [line + later for _, line in lines[rows - shape.fetched :]]
        ahead = Ahead(fetched, row, output + row.output_bytes * (tile.pixels * AHEAD))
        window = Window(lines, column, tile.span, row.width, row.column_bytes, row.zeros)
        body = partial(_sum_windows, k, f, shape, vectors)
        with_addresses(k, [window], body, targets=targets, ahead=ahead)


AHEAD = 4
"""Prefetch distance, in register tiles. The processor itself prefetches too few of the pixels that
are read, and none of those that are written."""

SECOND = 2
"""Level of the cache for prefetched pixels."""


class Ahead(NamedTuple):
    """Pixels of a later tile, in the kernel; their addresses need not be valid.

    ``rows`` are addresses in rows that no earlier strip has read.
    """

    rows: Sequence[Word]
    row: Row
    output: Word

    def fetch(self, k: Kernel, tile: RegisterTile, place: Word) -> None:
        """Prefetch one vector of channels of each pixel."""
        for row in self.rows:
            for column in range(tile.pixels * tile.stride):
                k.prefetch(row + self.row.column_bytes * column + place, SECOND)
        for pixel in range(tile.pixels if self.rows else 0):
            k.prefetch(self.output + self.row.output_bytes * pixel + place, SECOND)


PixelAddress = Callable[[int, int, Word | int], Word]
"""Returns the address of a byte of the pixel in a row and a column of some windows."""


class Window(NamedTuple):
    """Columns of some rows of an image, in the kernel.

    Attributes:
        rows: Whether a row is inside the image, and its address.
        first: The first column, possibly outside.
        span: Number of columns.
        columns: Columns of the image.
        step: Bytes from one pixel to the next.
        outside: Address of what is in the place of a pixel outside.
    """

    rows: Sequence[tuple[Condition, Word]]
    first: Word
    span: int
    columns: Word
    step: Word
    outside: Word


def with_addresses(
    k: Kernel, windows: Sequence[Window], body: Callable[..., None], **operands: Any
) -> None:
    """Write ``body``, given the addresses of each window's pixels, and the operands.

    At the edges of an image, pixels' addresses are written to an indirection buffer first.
    """
    sizes = [len(window.rows) * window.span for window in windows]
    noted = k.scratch(-(-sum(sizes) * INT // k.vector_bytes))
    inside = windows[0].first + windows[0].span <= windows[0].columns
    for rows, first, span, columns, _, _ in windows:
        inside = inside & (first > -1) & (first + span <= columns)
        for there, _ in rows:
            inside = inside & there

    def within(window: Window) -> PixelAddress:
        corners = [line + window.first * window.step for _, line in window.rows]
        steps = [window.step * j for j in range(window.span)]
        if is_x86():
            return lambda i, j, place: corners[i] + steps[j] + place
        return lambda i, j, place: corners[i] + place + steps[j]  # NEON adds the last in the load

    def at_edges(window: Window, own: Word) -> PixelAddress:
        rows, first, span, columns, step, outside = window
        for i, (there, line) in enumerate(rows):
            for j in range(span):
                x = first + j
                address = choose(there & (x > -1) & (x < columns), line + x * step, outside)
                k.store_word(address, own + (i * span + j) * INT)
        return lambda i, j, place: k.load_word(own + (i * span + j) * INT) + place

    with k.cases(choose(inside, 1, 0)) as case:
        case(1)
        body(*map(within, windows), **operands)
        case(0)
        places = [noted + sum(sizes[:number]) * INT for number in range(len(windows))]
        body(*map(at_edges, windows, places), **operands)


def _sum_windows(
    k: Kernel, f: DepthwiseFields, shape: Shape, vectors: tuple[Word, Word],
    address: PixelAddress, *, targets: Sequence[Sequence[Word]], ahead: Ahead,
) -> None:  # fmt: skip
    """Write the sums of a tile of windows, vector after vector of channels.

    ``targets`` are addresses of the outputs, row by row.
    """
    (pixels, wide, stride, dilation), lines = shape.tile, len(targets)
    first, last = (vector * k.vector_bytes for vector in vectors)
    last_place = (f.channels - k.width) * FLOAT
    again = (lambda word: word) if is_x86() else k.no_cse
    with k.loop(last, first, k.vector_bytes) as vector:
        place = minimum(vector.i, last_place)  # begins early where channels fill no whole vectors
        ahead.fetch(k, shape.tile, place)
        filters = f.filters + vector.i * (shape.rows * wide)
        offset = f.offsets + place  # which NEON loads faster than it copies
        sums = [[k.load(again(offset)) for _ in range(pixels)] for _ in range(lines)]
        for seen in range(shape.rows + lines - 1):
            numbers = {j: k.load(address(seen, j, place)) for j in columns_read(shape.tile)}
            for line in range(lines):
                i = seen - line
                for tap in range(wide if 0 <= i < shape.rows else 0):
                    weight = k.load(filters + (i * wide + tap) * k.vector_bytes)
                    sums[line] = [
                        fma(numbers[pixel * stride + tap * dilation], weight, total)
                        for pixel, total in enumerate(sums[line])
                    ]
        then = rectifying(k, f.rectifier, place, limited=shape.limited)
        for row, totals in zip(targets, sums, strict=True):
            for target, total in zip(row, totals, strict=True):
                k.store(then(total), target + place)


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
            **window_values(strips.op, x, y, aligned(channels)),
            filters=self.filters,
            rectifier=self.rectifier,
            channels=channels,
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
        shape = Shape.of(strips, then, fetches=strips.fetches)
        each = DepthwiseOperands(strips, x, y, then)
        self.filters, self.nbytes, self.update = each.filters, each.nbytes, each.update
        super().__init__(strips, _kernel(strips.width, shape), each.values, each.rectifier)
