"""Depthwise convolution: register tiles of windows, and the kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.depthwise import DepthwiseSchedule
from demitasse.backends.kernels.epilogue import NOTHING, Rectifier, rectifying
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import compiled
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import RUNTIME, Address
from demitasse.backends.kernels.language.words import (
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
    OutputFields,
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
    """Address of the groups' table. Columns: elements from the beginning of an input and an output
    pixel to the first channel; first vector; number of channels."""


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
        then: Epilogue of the sums.

    Attributes:
        filters: The filters of each vector, tap after tap. Shape: (vectors, taps, width).
        none: Zeros in place of offsets. Shape: (C,).
        values: For the kernel. With each call it is given ``x.at``, ``y.at`` and ``offsets``.

    Raises:
        ValueError: Channels are not contiguous.
    """

    def __init__(self, strips: DepthwiseSchedule, x: Images, y: Images, then: Rectifier) -> None:
        self._strips, width, op = strips, strips.width, strips.op
        x.vectors(width), y.vectors(width)
        (_, channels, _, _), groups = strips.x, strips.groups(x, y)
        self._taps = op.kernel[0] * op.kernel[1]
        self.filters = aligned(len(strips.vectors) * self._taps * width).reshape(
            -1, self._taps, width
        )
        self._order = np.add.outer(strips.vectors, np.arange(width))
        self.rectifier = then.numbers(channels)
        side_by_side = Shape.of(op).span(PIXELS[width]) * width
        # a group of less than a vector begins early
        zeros = aligned(width + max(channels, side_by_side))
        table = np.array([(g.x, g.y, g.vector, g.channels) for g in groups], np.int64)
        self.values = DepthwiseFields.values(
            **window_values(op, x, y, zeros, before=width),
            filters=self.filters,
            offsets=RUNTIME,
            rectifier=self.rectifier,
            groups=len(groups),
            group_table=table,
        )

    def update(self, weights: np.ndarray) -> None:
        """Copy new weights, given in C order."""
        by_channel = weights[: self._strips.x[1] * self._taps].reshape(-1, self._taps)
        self.filters[...] = by_channel[self._order].transpose(0, 2, 1)


class DepthwiseConvolution(WindowConvolution):
    """A depthwise convolution, with an offset for each channel and perhaps a rectifier.

    Args:
        strips: The convolution.
        x: The input.
        y: The output.
        then: Epilogue of the sums.

    Raises:
        ValueError: Channels are not contiguous.
    """

    def __init__(
        self, strips: DepthwiseSchedule, x: Images, y: Images, then: Rectifier = NOTHING
    ) -> None:
        shape = Shape.of(strips.op, fetches=strips.fetches(x, y), limited=then.limited)
        self._operands = each = DepthwiseOperands(strips, x, y, then)
        super().__init__(strips, _kernel(strips.width, shape), each.values, each.rectifier)

    @property
    def filters(self) -> np.ndarray:
        """The filters of each vector, tap after tap. Shape: (vectors, taps, width)."""
        return self._operands.filters

    def update(self, weights: np.ndarray) -> None:
        """Copy new weights, given in C order."""
        self._operands.update(weights)


PIXELS = {4: 7, 8: 6, 16: 7}
"""Floats of a vector -> pixels whose sums fit into registers, with the columns of a row of taps."""


AHEAD = 4
"""Prefetch distance, in register tiles. The
processor itself fetches too little of what it will read, and nothing of what it will write."""

SECOND = 2
"""Level of the cache for prefetched pixels."""


FRESH = 2
"""Last rows of a tile's windows, of which the next group's pixels are prefetched."""


class Shape(NamedTuple):
    """Parameters of a convolution that the kernel's code depends on.

    Attributes:
        kernel: Rows and columns of a window.
        stride: Columns from one window to the next.
        dilation: Columns from one tap to the next.
        fetches: True to prefetch pixels.
        limited: True if outputs are clamped.
    """

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
    """The channels of a group, in the kernel.

    Attributes:
        bytes: Of a pixel's channels.
        filters: Address of the filters: for each vector, tap after tap.
        offsets: Address of their offsets, channel after channel.
        rectifier: Address of their slopes for sums below 0; of the limits where there are any.
        later: Bytes from them to those of the next group.
    """

    bytes: Word
    filters: Word
    offsets: Word
    rectifier: Word
    later: Word


class Ahead(NamedTuple):
    """Pixels of a later tile, in the kernel; their addresses need not be valid.

    Attributes:
        rows: Addresses of the first that will be read, in the rows that no strip before has read.
        step: Bytes to the next of a row.
        columns: How many there are.
        output: Address of the first that will be written.
        output_step: Bytes to the next.
        outputs: How many there are.
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

    def at_edges(column: Word, targets: Sequence[Word], later: Ahead | None) -> None:
        span = shape.span(len(targets))
        fill_indirection_buffer(k, high, row, column, seen, span)

        def noted(i: int, j: int) -> Word:
            return k.load_word(seen + (i * span + j) * INT)

        _sum_windows(k, shape, channels, [targets], noted, later)

    def inside(column: Word, targets: Sequence[Word], later: Ahead | None) -> None:
        corner = row.image + row.top * row.row_bytes + column * row.column_bytes
        lines = [corner + row.down * row.row_bytes * i for i in range(high)]
        steps = [row.column_bytes * j for j in range(shape.span(len(targets)))]
        _sum_windows(k, shape, channels, [targets], lambda i, j: lines[i] + steps[j], later)

    def pixels(starts: Sequence[Word], count: int) -> None:
        column, output = starts
        targets = [output + row.output_bytes * pixel for pixel in range(count)]
        if count < most:  # the rest of a row, which its edge is near
            at_edges(column, targets, None)
            return
        later = ahead(column, output) if shape.fetches else None
        columns_inside = (column > -1) & (column + shape.span(count) <= row.width)
        with k.cases(choose(rows_inside & columns_inside, 1, 0)) as case:
            case(1)
            inside(column, targets, later)
            case(0)
            at_edges(column, targets, later)

    starts = -row.left, row.output
    a_few_at_a_time(k, row.columns, most, starts, (shape.stride, row.output_bytes), pixels)


def write_lines(
    k: Kernel, shape: Shape, row: Row, channels: Channels, line_bytes: Sequence[Word | int]
) -> None:
    """Write the outputs of a row, or of several, whose windows see rows side by side.

    There are as many columns as are computed at a time, or more: the last begin early where they do
    not divide.

    Args:
        k: The kernel.
        shape: The windows; of several rows, without strides and dilation.
        row: The first row.
        channels: The channels.
        line_bytes: For each row, bytes from the outputs of the first to its own.
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
        with k.cases(choose(rows_inside & (column > -1) & (column + span <= row.width), 1, 0)) as (
            case
        ):
            case(1)
            corner = row.image + row.top * row.row_bytes + column * row.column_bytes
            lines = [corner + row.down * row.row_bytes * i for i in range(rows)]
            steps = [row.column_bytes * j for j in range(span)]
            _sum_windows(k, shape, channels, targets, lambda i, j: lines[i] + steps[j], None)
            case(0)
            fill_indirection_buffer(k, rows, row, column, seen, span)
            _sum_windows(
                k, shape, channels, targets,
                lambda i, j: k.load_word(seen + (i * span + j) * INT), None,
            )  # fmt: skip


def write_block_lines(
    k: Kernel, shape: Shape, row: Row, channels: Channels, line_bytes: Sequence[Word | int]
) -> None:
    """Write the same of images in blocks of one vector of channels.

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

        def address(i: int, j: int) -> Word:
            edge = {0: firsts, span - 1: lasts}.get(j)
            return edge[i] if edge else places[i] + k.vector_bytes * j

        for place in places[-FRESH:]:
            for j in range(most * shape.stride):
                k.prefetch(place + channels.later + k.vector_bytes * j)
        _sum_vector(k, shape, channels, targets, address, 0)


def _columns(shape: Shape, count: int) -> list[int]:
    """Return those of them that windows see, for dilated ones leave some out."""
    pixels, taps = range(count), range(shape.kernel[1])
    return sorted({i * shape.stride + tap * shape.dilation for i in pixels for tap in taps})


def _sum_windows(
    k: Kernel,
    shape: Shape,
    channels: Channels,
    targets: Sequence[Sequence[Word]],
    address: Callable[[int, int], Word],
    later: Ahead | None,
) -> None:
    """Write the sums of a few windows, vector after vector of channels.

    Args:
        k: The kernel.
        shape: The windows.
        channels: The channels.
        targets: Addresses of the outputs, row by row. Several rows are of windows that see rows
            side by side.
        address: Returns that of the pixel in a row that is seen and a column.
        later: Pixels to prefetch for a later tile; None for none.
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
    k: Kernel,
    shape: Shape,
    channels: Channels,
    targets: Sequence[Sequence[Word]],
    address: Callable[[int, int], Word],
    place: Word | int,
) -> None:
    """Write the sums of a few windows, of one vector of channels.

    Args:
        k: The kernel.
        shape: The windows.
        channels: The channels; the filters are those of the vector.
        targets: Addresses of the outputs, row by row.
        address: Returns that of the pixel in a row that is seen and a column.
        place: Bytes from the first of the channels to the vector.
    """
    (high, wide), stride, dilation = shape[:3]
    vector, lines, count = k.vector_bytes, len(targets), len(targets[0])
    sums = [[k.load(channels.offsets + place)] * count for _ in range(lines)]
    for seen in range(high + lines - 1):
        columns = {j: k.load(address(seen, j) + place) for j in _columns(shape, count)}
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
