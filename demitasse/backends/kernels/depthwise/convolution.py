"""Depthwise convolution: register tiles of windows, and the kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.depthwise import DepthwiseSchedule
from demitasse.backends.kernels.epilogue import NOTHING, Rectifier, rectifying
from demitasse.backends.kernels.image_fields import OutputFields
from demitasse.backends.kernels.images import Images
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
from demitasse.backends.kernels.products import a_few_at_a_time
from demitasse.backends.kernels.windows import (
    Row,
    WindowConvolution,
    WindowFields,
    fill_indirection_buffer,
    window_values,
)

COLUMNS = 4
"""Integers of an entry of the table of groups."""


class DepthwiseFields(WindowFields):
    """A depthwise convolution."""

    y: OutputFields
    filters: Address
    """Filters: for each vector, tap after tap."""
    offsets: Address
    """One offset for each channel."""
    rectifier: Address
    """Numbers of the epilogue: one slope for each channel, or the limits."""
    groups: Word
    """Number of groups of channels."""
    group_table: Address
    """Columns: elements from the beginning of an input and an output pixel to the first channel;
    first vector; number of channels."""


@DepthwiseFields.kernel("depthwise")
def _kernel(k: Kernel, f: DepthwiseFields, shape: Shape) -> None:
    begin, end = chunk(f.groups * f.images * f.y.rows, *k.thread())
    with k.loop(end, begin) as strip:
        group, place = strip.i % f.groups, strip.i // f.groups
        output = f.y.row(place // f.y.rows, place % f.y.rows)
        write_strip(k, f, shape, group, place, output, f.y.column_stride * FLOAT)


def write_strip(
    k: Kernel, f: DepthwiseFields, shape: Shape, group: Word, place: Word, output: Word,
    output_bytes: Word, line_bytes: Sequence[Word | int] | None = None, *, in_blocks: bool = False,
) -> None:  # fmt: skip
    """Write the outputs of row ``place`` of all images, or of several rows, of a group of channels.

    ``output`` is the address of the first output with all channels; outputs are ``output_bytes``
    apart. Several rows are written by :func:`write_lines`, or :func:`write_block_lines` for images
    ``in_blocks``; None for ``line_bytes`` is one row of any length.
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

    Attributes:
        filters: The filters of each vector, tap after tap. Shape: (vectors, taps, width).
        values: Fields of the kernel; ``x.at``, ``y.at`` and ``offsets`` are given with each call.

    Raises:
        ValueError: Channels of ``x`` or ``y`` are not contiguous.
    """

    def __init__(self, strips: DepthwiseSchedule, x: Images, y: Images, then: Rectifier) -> None:
        width, op = strips.width, strips.op
        x.vectors(width), y.vectors(width)
        (_, channels, _, _), groups = strips.x, strips.groups(x, y)
        taps = op.kernel[0] * op.kernel[1]
        self.filters = aligned(len(strips.vectors) * taps * width).reshape(-1, taps, width)
        by_channel = np.arange(channels * taps).reshape(channels, taps)
        channels_of = np.add.outer(strips.vectors, np.arange(width))
        self._order = by_channel[channels_of].transpose(0, 2, 1).copy()
        self.rectifier = then.numbers(channels)
        side_by_side = Shape.of(op).span(PIXELS[width]) * width
        # a group of less than a vector begins early
        zeros = aligned(width + max(channels, side_by_side))
        table = np.array([(g.x, g.y, g.vector, g.channels) for g in groups], np.int64)
        self.values = DepthwiseFields.values(
            **window_values(op, x, y, zeros, before=width),
            filters=self.filters,
            rectifier=self.rectifier,
            groups=len(groups),
            group_table=table,
        )

    def update(self, weights: np.ndarray) -> None:
        """Copy new weights, given in C order."""
        np.take(weights, self._order, out=self.filters, mode="clip")


class DepthwiseConvolution(WindowConvolution):
    """A depthwise convolution, with an offset for each channel and an epilogue.

    ``filters`` and ``update`` are those of the operands.
    """

    def __init__(
        self, strips: DepthwiseSchedule, x: Images, y: Images, then: Rectifier = NOTHING
    ) -> None:
        shape = Shape.of(strips.op, fetches=strips.fetches(x, y), limited=then.limited)
        each = DepthwiseOperands(strips, x, y, then)
        self.filters, self.update = each.filters, each.update
        super().__init__(strips, _kernel(strips.width, shape), each.values, each.rectifier)


PIXELS = {4: 7, 8: 6, 16: 7}
"""Floats of a vector -> pixels whose sums fit into registers, with the columns of a row of taps."""


AHEAD = 4
"""Prefetch distance, in register tiles. The processor itself prefetches too few of the pixels that
are read, and none of those that are written."""

SECOND = 2
"""Level of the cache for prefetched pixels."""


FRESH = 2
"""Last rows of a tile's windows, of which the next group's pixels are prefetched."""


class Shape(NamedTuple):
    """Parameters of a convolution that the kernel's code depends on, along a row."""

    kernel: tuple[int, int]
    stride: int
    dilation: int
    fetches: bool = False
    limited: bool = False

    @classmethod
    def of(cls, op: ops.Conv, *, fetches: bool = False, limited: bool = False) -> Shape:
        """Return the shape of a convolution over two axes."""
        high, wide = op.kernel
        return cls((high, wide), op.stride[1], op.dilation[1], fetches, limited)

    def span(self, count: int) -> int:
        """Return the number of columns from the first to the last of adjacent windows."""
        return (count - 1) * self.stride + (self.kernel[1] - 1) * self.dilation + 1

    def __str__(self) -> str:
        size = "x".join(map(str, (*self.kernel, self.stride, self.dilation)))
        return size + "_fetching" * self.fetches + "_limited" * self.limited


class Channels(NamedTuple):
    """The channels of a group, in the kernel: addresses, and bytes of a pixel's channels.

    ``later`` are the bytes from a pixel's channels to those of the next group.
    """

    bytes: Word
    filters: Word
    offsets: Word
    rectifier: Word
    later: Word


class Ahead(NamedTuple):
    """Pixels of a later tile, in the kernel; their addresses need not be valid.

    ``rows`` are addresses in rows that no earlier strip has read.
    """

    rows: Sequence[Word]
    step: Word
    columns: int
    output: Word
    output_step: Word
    outputs: int

    def fetch(self, k: Kernel, place: Word) -> None:
        """Prefetch one vector of channels of each pixel."""
        for row in self.rows:
            for column in range(self.columns):
                k.prefetch(row + self.step * column + place, SECOND)
        for pixel in range(self.outputs):
            k.prefetch(self.output + self.output_step * pixel + place, SECOND)


def write_row(k: Kernel, shape: Shape, row: Row, channels: Channels) -> None:
    """Write the outputs of a row, of all channels of a group, a few pixels at a time.

    At the edges of an image, pixels' addresses are written to an indirection buffer first.
    """
    most, (high, _) = PIXELS[k.width], shape.kernel
    seen = k.scratch(-(-high * shape.span(most) * INT // k.vector_bytes))
    rows_inside = (row.top > -1) & (row.top + row.down * (high - 1) < row.height)

    def ahead(column: Word, output: Word) -> Ahead:
        columns = most * shape.stride
        first = row.image + row.top * row.row_bytes + (column + columns * AHEAD) * row.column_bytes
        fresh = range(high)[-shape.stride :]  # rows step down as columns step to the right
        rows = [first + row.down * row.row_bytes * i for i in fresh]
        later = output + row.output_bytes * (most * AHEAD)
        return Ahead(rows, row.column_bytes, columns, later, row.output_bytes, most)

    def pixels(starts: Sequence[Word], count: int) -> None:
        (column, output), span = starts, shape.span(count)
        targets = [[output + row.output_bytes * pixel for pixel in range(count)]]
        if count < most:  # the rest of a row, which its edge is near
            address = _at_edges(k, row, column, seen, high, span)
            _sum_windows(k, shape, channels, targets, address, None)
            return
        later = ahead(column, output) if shape.fetches else None
        columns_inside = (column > -1) & (column + span <= row.width)
        with k.cases(choose(rows_inside & columns_inside, 1, 0)) as case:
            case(1)
            _sum_windows(k, shape, channels, targets, _inside(row, column, high, span), later)
            case(0)
            address = _at_edges(k, row, column, seen, high, span)
            _sum_windows(k, shape, channels, targets, address, later)

    starts = -row.left, row.output
    a_few_at_a_time(k, row.columns, most, starts, (shape.stride, row.output_bytes), pixels)


PixelAddress = Callable[[int, int, Word | int], Word]
"""Returns the address of a byte of the pixel in a row and a column of some windows."""


def _inside(row: Row, column: Word, rows: int, span: int) -> PixelAddress:
    """Return the addresses of pixels of windows inside the image."""
    corner = row.image + row.top * row.row_bytes + column * row.column_bytes
    lines = [corner + row.down * row.row_bytes * i for i in range(rows)]
    steps = [row.column_bytes * j for j in range(span)]
    if is_x86():
        return lambda i, j, place: lines[i] + steps[j] + place
    return lambda i, j, place: lines[i] + place + steps[j]  # NEON adds the last in the load


def _at_edges(k: Kernel, row: Row, column: Word, seen: Word, rows: int, span: int) -> PixelAddress:
    """Write the indirection buffer at ``seen``, and return the addresses in the buffer."""
    fill_indirection_buffer(k, rows, row, column, seen, span)
    return lambda i, j, place: k.load_word(seen + (i * span + j) * INT) + place


def write_lines(
    k: Kernel, shape: Shape, row: Row, channels: Channels, line_bytes: Sequence[Word | int]
) -> None:
    """Write the outputs of a row, or of several, whose windows see rows side by side.

    A row has at least as many columns as are computed at a time: the last tile begins early. For
    each row, ``line_bytes`` has the bytes from the outputs of the first row; several rows have
    neither strides nor dilation.
    """
    most, rows = PIXELS[k.width], shape.kernel[0] + len(line_bytes) - 1
    span = shape.span(most)
    seen = k.scratch(-(-rows * span * INT // k.vector_bytes))
    rows_inside = (row.top > -1) & (row.top + row.down * (rows - 1) < row.height)
    with k.loop(row.columns, 0, most) as few:
        first = minimum(few.i, row.columns - most)
        column, output = first * shape.stride - row.left, row.output + first * row.output_bytes
        targets = [
            [output + line + row.output_bytes * pixel for pixel in range(most)]
            for line in line_bytes
        ]
        inside = rows_inside & (column > -1) & (column + span <= row.width)
        with k.cases(choose(inside, 1, 0)) as case:
            case(1)
            _sum_windows(k, shape, channels, targets, _inside(row, column, rows, span), None)
            case(0)
            address = _at_edges(k, row, column, seen, rows, span)
            _sum_windows(k, shape, channels, targets, address, None)


def write_block_lines(
    k: Kernel, shape: Shape, row: Row, channels: Channels, line_bytes: Sequence[Word | int]
) -> None:
    """Write the outputs of :func:`write_lines` for images in blocks of one vector of channels.

    A block's rows follow each other in memory and stay in the first cache until the rows below have
    read them. Its pixels are at known distances from the first of a row, and need no addresses of
    their own. Windows reach over an edge of the image by one column at most.
    """
    most, rows = PIXELS[k.width], shape.kernel[0] + len(line_bytes) - 1
    span = shape.span(most)
    seen: list[tuple[Condition, Word]] = []
    for i in range(rows):
        y = row.top + row.down * i
        seen.append(((y > -1) & (y < row.height), row.image + y * row.row_bytes))
    with k.loop(row.columns, 0, most) as few:
        first = minimum(few.i, row.columns - most)
        column, output = first * shape.stride - row.left, row.output + first * row.output_bytes
        targets = [
            [output + line + row.output_bytes * pixel for pixel in range(most)]
            for line in line_bytes
        ]
        places = [choose(inside, at + column * k.vector_bytes, row.zeros) for inside, at in seen]
        ends = column > -1, column + span <= row.width
        firsts, lasts = (
            [choose(end, place + k.vector_bytes * j, row.zeros) for place in places]
            for j, end in zip((0, span - 1), ends, strict=True)
        )

        def address(i: int, j: int, place: Word | int) -> Word:
            edge = {0: firsts, span - 1: lasts}.get(j)
            return (edge[i] if edge else places[i] + k.vector_bytes * j) + place

        for place in places[-FRESH:]:
            for j in range(most * shape.stride):
                k.prefetch(place + channels.later + k.vector_bytes * j)
        _sum_vector(k, shape, channels, targets, address, 0)


def _columns(shape: Shape, count: int) -> list[int]:
    """Return the columns that ``count`` windows read; dilated windows leave some out."""
    pixels, taps = range(count), range(shape.kernel[1])
    return sorted({i * shape.stride + tap * shape.dilation for i in pixels for tap in taps})


def _sum_windows(
    k: Kernel, shape: Shape, channels: Channels, targets: Sequence[Sequence[Word]],
    address: PixelAddress, later: Ahead | None,
) -> None:  # fmt: skip
    """Write the sums of a few windows, vector after vector of channels.

    ``targets`` are addresses of the outputs, row by row.
    """
    vector = k.vector_bytes
    last = channels.bytes - vector  # begins early where channels fill no whole vectors
    with k.loop(channels.bytes, 0, vector, words=[channels.filters]) as loop:
        [filters] = loop.words
        place = minimum(loop.i, last)
        if later is not None:
            later.fetch(k, place)
        here = channels._replace(filters=filters)
        _sum_vector(k, shape, here, targets, address, place)
        loop.words = [filters + shape.kernel[0] * shape.kernel[1] * vector]


def _sum_vector(
    k: Kernel, shape: Shape, channels: Channels, targets: Sequence[Sequence[Word]],
    address: PixelAddress, place: Word | int,
) -> None:  # fmt: skip
    """Write the sums of :func:`_sum_windows` for one vector, ``place`` bytes behind the first.

    The filters of ``channels`` are the vector's.
    """
    (high, wide), stride, dilation = shape[:3]
    vector, lines, count = k.vector_bytes, len(targets), len(targets[0])
    first = channels.offsets + place  # which NEON loads faster than it copies
    again = (lambda word: word) if is_x86() else k.no_cse
    sums = [[k.load(again(first)) for _ in range(count)] for _ in range(lines)]
    for seen in range(high + lines - 1):
        columns = {j: k.load(address(seen, j, place)) for j in _columns(shape, count)}
        for line in range(lines):
            i = seen - line
            for tap in range(wide if 0 <= i < high else 0):
                weight = k.load(channels.filters + (i * wide + tap) * vector)
                sums[line] = [
                    fma(columns[pixel * stride + tap * dilation], weight, total)
                    for pixel, total in enumerate(sums[line])
                ]
    then = rectifying(k, channels.rectifier, place, limited=shape.limited)
    for row, totals in zip(targets, sums, strict=True):
        for target, total in zip(row, totals, strict=True):
            k.store(then(total), target + place)
