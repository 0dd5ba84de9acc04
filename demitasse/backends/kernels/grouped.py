"""Convolution of small groups of contiguous channels, and the gradients of filters and bias."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from typing import ClassVar, NamedTuple

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.depthwise import plan_depthwise
from demitasse.backends.kernels.depthwise.convolution import DepthwiseConvolution
from demitasse.backends.kernels.epilogue import NOTHING, Rectifier, rectifying
from demitasse.backends.kernels.image_fields import OutputFields
from demitasse.backends.kernels.images import Images, first_channels, need_layout
from demitasse.backends.kernels.language import call_recorder
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Arguments, Output
from demitasse.backends.kernels.language.values import (
    FLOAT,
    INT,
    Vector,
    Word,
    choose,
    chunk,
    fma,
    maximum,
    minimum,
    permuted,
)
from demitasse.backends.kernels.tuning import ConvSchedule, Tuning
from demitasse.backends.kernels.windows import (
    RegisterTile,
    Row,
    Seen,
    WindowConvolution,
    WindowFields,
    columns_read,
    decline_many,
    for_each_tile,
    plan_tile,
    window_values,
)
from demitasse.backends.step import Declined, decline_if

PIXELS = {4: 14, 8: 8, 16: 14}
"""Floats of a vector -> windows whose sums fit into registers, with a row of taps."""

SHARED = 8
"""The same where several groups have a vector, for each width: of those a pixel has few channels
that are read again, and all of a tile's pixels do better to stay in a core's first cache."""

SMALL = 9
"""Taps of a window up to which groups of whole vectors do not go over tiles."""

ROWS_EACH = 8
"""Rows of outputs that each thread has at least; with fewer, threads divide the filters too."""


@dataclass(frozen=True)
class GroupedSchedule(ConvSchedule):
    """A convolution of groups. A part is some of its filters; threads divide its rows, too."""

    kernel: ClassVar[str] = "grouped"

    @property
    def channels(self) -> int:
        """Channels that a group reads."""
        return self.x[1] // self.op.group

    @property
    def shared(self) -> bool:
        """True if several groups have a vector."""
        return self.channels < self.width and self.x[1] == self.y[1]

    def fits(self, images: Images) -> bool:
        """Return whether what a vector reads or writes lies side by side in images."""
        return images.fits(self.width) if self.shared else images.block == images.shape[1]

    @property
    def beats_tiles(self) -> bool:
        """True if this kernel is preferred to Winograd's, whose filters are four times as large.

        Few products are made of each, so that reading them takes as long as those save; not so in
        windows of 5x5, of which a tile saves more.
        """
        if "winograd" in self.tuning.always:
            return False
        return self.shared or math.prod(self.op.kernel) <= SMALL

    @cached_property
    def vectors(self) -> list[int]:
        """First filter of each vector; the last begins early where they do not divide."""
        return first_channels(self.y[1], self.width)

    @cached_property
    def filter_order(self) -> np.ndarray:
        """Filters of each vector. Shape: (vectors, width)."""
        return np.add.outer(self.vectors, np.arange(self.width))

    def filter_memory(self) -> np.ndarray:
        """Return zeros for the filters of each vector.

        Shape: (vectors, rows, channels, taps, width).
        """
        shape = len(self.vectors), self.op.kernel[0], self.channels, self.op.kernel[1], self.width
        return aligned(math.prod(shape)).reshape(shape)

    @cached_property
    def tile(self) -> RegisterTile:
        return plan_tile(self.y[3], SHARED if self.shared else PIXELS[self.width], self.op)

    @property
    def fetches(self) -> bool:
        """True if pixels are prefetched, because no cache has room for all images."""
        floats = math.prod(self.x) + math.prod(self.y)
        return floats * FLOAT > self.tuning.cached_bytes

    @cached_property
    def parts(self) -> int:
        """Into how many parts the vectors are divided, so that a part's filters stay in a cache."""
        size = self.y[1] * self.channels * math.prod(self.op.kernel) * FLOAT
        parts = math.ceil(size / self.tuning.group_filter_bytes)
        if self.y[0] * self.y[2] * parts < ROWS_EACH * self.tuning.threads:
            parts = max(parts, self.tuning.threads)
        return min(parts, len(self.vectors))


WIDEST = 11
"""Greatest number of taps of a window's row; kernels are unrolled over taps."""


def plan_grouped(op: ops.Conv, x: ops.Shape, y: ops.Shape, tuning: Tuning) -> GroupedSchedule:
    """Return the schedule of a convolution with small groups; shapes are (N, C, H, W).

    Raises:
        Declined: Groups or windows are unsupported.
    """
    width = tuning.width
    tuning.require("grouped")
    reads, writes = x[1] // op.group, y[1] // op.group
    shared = reads == writes and width % reads == 0
    fits = 1 <= reads <= width <= y[1] and (shared or writes % width == 0)
    decline_if(
        len(op.kernel) != 2 or op.group == 1 or not fits or op.kernel[1] > WIDEST,
        f"convolution of groups takes two axes, groups of up to {width} channels that divide a "
        f"vector, or are written as whole ones, and windows up to {WIDEST} wide",
    )
    parts = GroupedSchedule(op, x, y, tuning)
    decline_many(parts.tile, op)
    return parts


AHEAD = 2
"""Prefetch distance, in register tiles."""

SECOND = 2
"""Level of the cache for prefetched pixels."""


class GroupedFields(WindowFields):
    """A convolution of groups."""

    y: OutputFields
    channels: Word
    """Channels that a group reads."""
    filters: Address
    """Filters: for each vector and row of taps, channel after channel, tap after tap."""
    filter_bytes: Word
    """Bytes of a vector's filters."""
    offsets: Address
    """One offset for each channel of the output."""
    rectifier: Address
    """Numbers of the epilogue: one slope for each channel, or the limits."""
    vectors: Word
    """Number of vectors of filters."""
    vector_table: Address
    """Columns: bytes from the beginning of an input pixel to the channels read, and of an output
    pixel to the channels written; bytes from the first offset."""
    parts: Word


class Work(NamedTuple):
    """Parameters of a convolution that the kernel's code depends on.

    Attributes:
        rows: Rows of a window.
        shared: Channels of a group, of which several have a vector; 0 for groups of whole vectors.
        fetched: Rows of the input from one row of windows to the next, whose pixels are prefetched;
            0 for none.
    """

    rows: int
    tile: RegisterTile
    shared: int
    fetched: int
    limited: bool

    def __str__(self) -> str:
        fetching = f"_fetching{self.fetched}" if self.fetched else ""
        fetching += "_limited" * self.limited
        return f"{self.rows}x{self.tile}" + (f"of{self.shared}" if self.shared else "") + fetching


@GroupedFields.kernel("grouped")
def _kernel(k: Kernel, f: GroupedFields, work: Work) -> None:
    tile, lines = work.tile, f.images * f.y.rows
    begin, end = chunk(f.parts * lines, *k.thread())
    with k.loop(end, begin) as strip:
        first, last = chunk(f.vectors, strip.i // lines, f.parts)
        row = f.row(strip.i % lines)

        def body(corner: Word, output: Word, seen: Seen) -> None:
            with k.loop(last, first) as vector:
                x, y, own = k.load_words(f.vector_table + vector.i * (3 * INT), 3)
                if work.fetched:
                    _fetch(k, work, row, corner + x, output + y)
                filters = f.filters + vector.i * f.filter_bytes
                sums = [k.load(f.offsets + own)] * tile.pixels
                sums = _summed(k, f, work, seen, x, filters, sums)
                then = rectifying(k, f.rectifier, own, limited=work.limited)
                for pixel, total in enumerate(sums):
                    k.store(then(total), output + row.output_bytes * pixel + y)

        for_each_tile(k, row, work.rows, tile, body)


def _fetch(k: Kernel, work: Work, row: Row, corner: Word, output: Word) -> None:
    """Prefetch a cache line of each pixel of a later tile that no earlier row has read."""
    columns = work.tile.pixels * work.tile.stride
    for line in range(work.rows)[-work.fetched :]:
        later = corner + row.down * line * row.row_bytes + row.column_bytes * (columns * AHEAD)
        for column in range(columns):
            k.prefetch(later + row.column_bytes * column, SECOND)
    later = output + row.output_bytes * (work.tile.pixels * AHEAD)
    for pixel in range(work.tile.pixels):
        k.prefetch(later + row.output_bytes * pixel, SECOND)


def _summed(
    k: Kernel, f: GroupedFields, work: Work, seen: Seen, x: Word, filters: Word, sums: list[Vector]
) -> list[Vector]:
    """Return ``sums`` and the products of a tile's windows with a vector's filters.

    The channels that are read lie ``x`` bytes from the beginning of a pixel.
    """
    tile, shared = work.tile, work.shared
    tap_bytes, columns = k.vector_bytes * tile.taps, columns_read(tile)

    def add(totals: list[Vector], taps: Word, spread: Callable[[Word], Vector]) -> None:
        """Write the products of a channel's row of taps."""
        weights = [k.load(taps + k.vector_bytes * tap) for tap in range(tile.taps)]
        for column, products in columns.items():
            number = spread(pixels[column])
            for tap, pixel in products:
                totals[pixel] = fma(number, weights[tap], totals[pixel])

    with k.loop(work.rows, vectors=sums, words=[filters]) as row:
        pixels = {column: seen(row.i, column, x) for column in columns}
        [taps] = row.words
        for channel in range(shared):
            add(row.vectors, taps + tap_bytes * channel, partial(_shared, k, shared, channel))
        row.words = [taps + tap_bytes * shared]
        if not shared:
            with k.loop(f.channels, vectors=row.vectors, words=[taps]) as inner:
                place, [taps] = inner.i * FLOAT, inner.words
                add(inner.vectors, taps, lambda pixel: k.broadcast(pixel + place))
                inner.words = [taps + tap_bytes]
            row.vectors, row.words = inner.vectors, inner.words
    return row.vectors


def _shared(k: Kernel, shared: int, channel: int, pixel: Word) -> Vector:
    """Return a vector with the number of one channel of each group for all of the group's filters.

    Each call loads the vector again, because no register is free.
    """
    return permuted(k.load(k.no_cse(pixel)), _lanes(k, shared, channel))


def _lanes(k: Kernel, shared: int, channel: int) -> list[int]:
    """Return the lane of one channel of its group, for each lane."""
    return [lane // shared * shared + channel for lane in range(k.width)]


class GroupedConvolution(WindowConvolution):
    """A convolution of small groups, with an offset for each channel and an epilogue.

    Attributes:
        filters: The filters of each vector: row after row, channel after channel, tap after tap.
            Shape: (vectors, rows, channels, taps, width).
    """

    def __init__(
        self, parts: GroupedSchedule, x: Images, y: Images, then: Rectifier = NOTHING
    ) -> None:
        width, op = parts.width, parts.op
        firsts, channels, writes = np.array(parts.vectors), parts.channels, parts.y[1] // op.group
        need_layout(parts.fits(x) and parts.fits(y), x, y)
        self.filters, self._order = parts.filter_memory(), parts.filter_order
        rectifier = then.numbers(parts.y[1])
        reads = firsts if parts.shared else firsts // writes * channels
        shared, fetched = channels if parts.shared else 0, op.stride[0] if parts.fetches else 0
        values = GroupedFields.values(
            **window_values(op, x, y, aligned(max(width, channels))),
            channels=channels,
            filters=self.filters,
            filter_bytes=self.filters[0].nbytes,
            rectifier=rectifier,
            vectors=len(firsts),
            vector_table=np.stack([x.place(reads), y.place(firsts), firsts], axis=1) * FLOAT,
            parts=parts.parts,
        )
        kernel = _kernel(width, Work(op.kernel[0], parts.tile, shared, fetched, then.limited))
        super().__init__(parts, kernel, values, rectifier)

    def update(self, weights: np.ndarray) -> None:
        """Copy new weights in C order."""
        _, rows, channels, taps, _ = self.filters.shape
        shape = self.schedule.y[1], channels, rows, taps
        by_filter = weights[: math.prod(shape)].reshape(shape)
        self.filters[...] = by_filter[self._order].transpose(0, 3, 2, 4, 1)


GroupConvolution = DepthwiseConvolution | GroupedConvolution


def group_convolution(
    parts: GroupedSchedule, x: Images, y: Images, then: Rectifier = NOTHING
) -> GroupConvolution:
    """Return the convolution: of single channels by the depthwise kernel, up to its windows."""
    if parts.channels == 1:
        with suppress(Declined):
            strips = plan_depthwise(parts.op, parts.x, parts.y, parts.tuning)
            return DepthwiseConvolution(strips, x, y, then)
    return GroupedConvolution(parts, x, y, then)


class Phase(NamedTuple):
    """Rows or columns of the input that are ``stride`` apart, and the taps that reach them.

    Attributes:
        first: The first of them.
        size: Their number.
        taps: The taps in the order of the outputs that they are seen from.
        pad: Outputs before the first that the first one's window begins, maybe less than 0.
        dilation: Outputs from one tap to the next.
    """

    first: int
    size: int
    taps: range
    pad: int
    dilation: int


def phases(op: ops.Conv, axis: int) -> Iterator[Phase]:
    """Yield the phases of a spatial axis of the input of a convolution.

    For each, the gradient of the input is a convolution of the outputs' gradients.
    """
    stride, dilation, pad = op.stride[axis], op.dilation[axis], op.pad[axis]
    end, apart = op.bottom[2 + axis], math.gcd(stride, dilation)
    for first in range(min(stride, end)):
        size = -(-(end - first) // stride)
        reached = [
            tap for tap in range(op.kernel[axis]) if (first + pad - tap * dilation) % stride == 0
        ]
        if not reached:
            yield Phase(first, size, range(0), size, 1)  # sees zeros alone
            continue
        taps = range(reached[-1], -1, -stride // apart)
        yield Phase(
            first, size, taps, (taps[0] * dilation - first - pad) // stride, dilation // apart
        )


class InputGradient:
    """The gradient of the input of a convolution of groups, phase by phase of the strides."""

    def __init__(self, parts: GroupedSchedule, x: Images, y: Images) -> None:
        op, (step_down, step_right) = parts.op, parts.op.stride
        self._shape = op.group, parts.channels, parts.channels, *op.kernel
        self._parts: list[tuple[GroupConvolution, int, tuple[range, range]]] = []
        for down, right in product(phases(op, 0), phases(op, 1)):
            shape = *x.shape[:2], down.size, right.size
            window = {
                "kernel": (max(1, len(down.taps)), max(1, len(right.taps))),
                "stride": (1, 1),
                "pad": (down.pad, right.pad),
                "dilation": (down.dilation, right.dilation),
            }
            turned = ops.Conv(**{**vars(op), **window, "bottom": parts.y, "top": shape})
            images = replace(
                x, shape=shape, row_stride=x.row_stride * step_down,
                column_stride=x.column_stride * step_right,
            )  # fmt: skip
            schedule = replace(parts, op=turned, x=parts.y, y=shape)
            begin = down.first * x.row_stride + right.first * x.column_stride
            convolution = group_convolution(schedule, y, images)
            self._parts.append((convolution, begin, (down.taps, right.taps)))

    @property
    def filters(self) -> np.ndarray:
        """The filters of all phases."""
        return np.concatenate([one.filters.reshape(-1) for one, _, _ in self._parts])

    def update(self, weights: np.ndarray) -> None:
        """Copy new weights, in C order."""
        by_group = weights[: math.prod(self._shape)].reshape(self._shape).swapaxes(1, 2)
        for convolution, _, (down, right) in self._parts:
            if down and right:
                turned = by_group[:, :, :, down][..., right]
                convolution.update(np.ascontiguousarray(turned).reshape(-1))

    def __call__(self, dy: np.ndarray, dx: np.ndarray, offsets: None = None) -> None:
        """Write the gradient of the input."""
        for convolution, begin, _ in self._parts:
            convolution(dy, dx[begin:], offsets)


MOST_SUMS = {4: 25, 8: 12, 16: 25}
"""Floats of a vector -> sums that are in registers at a time."""

GRADIENTS = 4
"""Windows whose gradients are in registers with the sums."""


class GradientFields(WindowFields):
    """The gradient of the filters; the output is its gradient here, which is read."""

    inside: Word
    """The first window of a row that sees no column outside the image."""
    inside_end: Word
    """End of the range, exclusive."""
    sums: Output
    """Sums: for each part, vector and line of taps, channel after channel, tap after tap, and the
    sum of the gradients."""
    vectors: Word
    """Number of vectors of filters."""
    vector_table: Address
    """Columns: bytes from the beginning of an input pixel to the channels read, and from the
    beginning of a gradient's pixel to the vector's channels."""
    parts: Word
    """Parts of the rows, each with sums of its own."""
    rows: Word
    """Rows of outputs whose products are summed by themselves first."""


class Filter(NamedTuple):
    """Parameters of the filters that the kernel's code depends on.

    Attributes:
        lines: Into how many lines of ``rows`` the rows of taps are divided.
        channels: Channels of a group.
    """

    lines: int
    rows: int
    taps: int
    stride: int
    dilation: int
    channels: int

    def __str__(self) -> str:
        return "x".join(map(str, self))

    @property
    def sums(self) -> int:
        """Sums of a line: of products, and of the gradients."""
        return self.rows * self.channels * self.taps + 1

    def some_channels(self, width: int) -> Iterator[range]:
        """Yield channels whose sums are in registers at a time."""
        most = max(1, MOST_SUMS[width] // (self.rows * self.taps))
        for first in range(0, self.channels, most):
            yield range(first, min(first + most, self.channels))


@GradientFields.kernel("grouped_gradient")
def _gradient_kernel(k: Kernel, f: GradientFields, shape: Filter) -> None:
    units, each = f.vectors * shape.lines, shape.rows * shape.taps
    begin, end = chunk(f.parts * units, *k.thread())  # no sum is divided
    with k.loop(f.parts) as part:
        above = part.i * units
        first, last = maximum(begin - above, 0), minimum(end - above, units)
        top, bottom = chunk(f.images * f.y.rows, part.i, f.parts)
        with k.when(first < last), k.loop(bottom, top, f.rows) as rows, k.loop(last, first) as unit:
            x, y = k.load_words(f.vector_table + unit.i // shape.lines * (2 * INT), 2)
            sums = f.sums + (above + unit.i) * (shape.sums * k.vector_bytes)
            for channels in shape.some_channels(k.width):
                own = sums + channels.start * each * k.vector_bytes
                count = len(channels) * each + (channels.stop == shape.channels)
                totals = [k.constant(0.0)] * count
                with k.loop(minimum(rows.i + f.rows, bottom), rows.i, vectors=totals) as place:
                    row = f.row(place.i)
                    down = row.down * (unit.i % shape.lines * shape.rows)
                    row = row._replace(
                        image=row.image + x, top=row.top + down, output=row.output + y
                    )
                    place.vectors = _add_row(k, f, shape, row, channels, place.vectors)
                for at, total in enumerate(place.vectors):  # sums of partial sums are more exact
                    where = own + k.vector_bytes * at
                    before = choose(rows.i > top, k.load(where), k.constant(0.0))
                    k.store(before + total, where)


def _add_row(
    k: Kernel, f: GradientFields, shape: Filter, row: Row, channels: range, totals: list[Vector]
) -> list[Vector]:
    """Return the sums and the products of a row of windows, and the sum of the gradients."""
    heights = [row.top + row.down * i for i in range(shape.rows)]
    lines = [
        choose((y > -1) & (y < row.height), row.image + y * row.row_bytes, row.zeros)
        for y in heights
    ]

    def edge(column: Word, i: int, j: int) -> Word:
        x = column + j
        return choose((x > -1) & (x < row.width), lines[i] + x * row.column_bytes, row.zeros)

    def within(column: Word, i: int, j: int) -> Word:
        return lines[i] + column * row.column_bytes + row.column_bytes * j

    middle = f.inside + (f.inside_end - f.inside) // GRADIENTS * GRADIENTS
    ranges = (
        (0, f.inside, 1, edge), (f.inside, middle, GRADIENTS, within),
        (middle, f.inside_end, 1, within), (f.inside_end, row.columns, 1, edge),
    )  # fmt: skip
    for first, last, count, address in ranges:
        tile = RegisterTile(count, shape.taps, shape.stride, shape.dilation)
        with k.loop(last, first, count, vectors=totals) as windows:
            output = row.output + windows.i * row.output_bytes
            gradients = [k.load(output + row.output_bytes * pixel) for pixel in range(count)]
            seen = partial(address, windows.i * shape.stride - row.left)
            windows.vectors = _add_products(
                k, shape, tile, gradients, seen, channels, windows.vectors
            )
        totals = windows.vectors
    return totals


def _add_products(
    k: Kernel, shape: Filter, tile: RegisterTile, gradients: list[Vector],
    seen: Callable[[int, int], Word], channels: range, totals: list[Vector],
) -> list[Vector]:  # fmt: skip
    """Return the sums and the products of a tile's gradients with some channels of the input."""
    sums = list(totals)
    for column, products in columns_read(tile).items():
        for i in range(shape.rows):
            numbers = k.load(seen(i, column))
            for place, channel in enumerate(channels):
                order = [
                    lane // shape.channels * shape.channels + channel for lane in range(k.width)
                ]
                number = permuted(numbers, order) if shape.channels > 1 else numbers
                for tap, pixel in products:
                    at = (place * shape.rows + i) * shape.taps + tap
                    sums[at] = fma(gradients[pixel], number, sums[at])
    if channels.stop == shape.channels:
        sums[-1] = sum(gradients, sums[-1])
    return sums


def _inside(op: ops.Conv, columns: int, outputs: int) -> tuple[int, int]:
    """Return the first window of a row that sees only the image, and that after the last."""
    left, stride, reach = op.pad[1], op.stride[1], (op.kernel[1] - 1) * op.dilation[1]
    first = min(max(0, -(-left // stride)), outputs)
    last = (columns - 1 - reach + left) // stride + 1
    return first, max(first, min(last, outputs))


BLOCK_WINDOWS = 64
"""Windows of a channel whose products are summed by themselves, at least, in whole rows."""

PART_CHANNELS, PART_BLOCKS = 2048, 4
"""Channels of all parts together, and sums of rows that each part has at least: threads divide the
parts, whose number depends on shapes alone so that no bit depends on the threads."""


class GroupedGradient:
    """The gradient of the filters of groups of which several have a vector, and of the bias.

    Attributes:
        sums: The sums of all parts. Shape: (parts, vectors, lines, sums, width).
    """

    def __init__(self, parts: GroupedSchedule, x: Images, y: Images) -> None:
        self.parts, width, op = parts, parts.width, parts.op
        if not parts.shared:
            message = f"groups of {parts.channels} channels; give groups of less than a vector"
            raise ValueError(message)
        need_layout(parts.fits(x) and parts.fits(y), x, y)
        (high, taps), channels = op.kernel, parts.channels
        each = high if channels == 1 and high * taps <= MOST_SUMS[width] else 1
        self._shape = Filter(high // each, each, taps, op.stride[1], op.dilation[1], channels)
        rows, divided = 1, 1  # bits of groups of several channels are as they were
        if channels == 1:
            rows = max(1, BLOCK_WINDOWS // parts.y[3])
            blocks = parts.y[0] * parts.y[2] // rows
            divided = max(1, min(PART_CHANNELS // parts.y[1], blocks // PART_BLOCKS))
        firsts = np.array(parts.vectors)
        shape = divided, len(firsts), self._shape.lines, self._shape.sums, width
        self.sums = aligned(math.prod(shape)).reshape(shape)
        self._weights, self._offsets = self._places()
        inside, inside_end = _inside(op, parts.x[3], parts.y[3])
        zeros = aligned(parts.x[3] * x.column_stride)  # a row outside the image
        self._kernel = _gradient_kernel(width, self._shape)
        self._arguments = Arguments(
            GradientFields.values(
                **window_values(op, x, y, zeros, gradient=True),
                inside=inside,
                inside_end=inside_end,
                sums=self.sums,
                vectors=len(firsts),
                vector_table=np.stack([x.place(firsts), y.place(firsts)], axis=1) * FLOAT,
                parts=divided,
                rows=rows,
            )
        )

    def __call__(
        self, source: np.ndarray, dy: np.ndarray, weight: np.ndarray, bias: np.ndarray | None
    ) -> None:
        """Write the gradients of the weights, in C order, and of the bias, (M,)."""
        each = {"x.at": source, "y.at": dy}
        self._arguments.run(self._kernel, self.parts.tuning.threads, each)
        call_recorder.call(self._unpack, weight, bias)

    def _places(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the place of each weight's gradient, and of each bias', in the sums of a part."""
        one, parts = self._shape, self.parts
        sums = np.arange(self.sums[0].size).reshape(self.sums[0].shape)
        shape = len(sums), one.lines, one.channels, one.rows, one.taps, parts.width
        products = sums[:, :, :-1].reshape(shape).transpose(0, 5, 2, 1, 3, 4)
        places = np.empty((parts.y[1], *products.shape[2:]), np.int64)
        offsets = np.empty(parts.y[1], np.int64)
        # a filter that is in two vectors has the same sums in both
        places[parts.filter_order], offsets[parts.filter_order] = products, sums[:, 0, -1]
        return places.reshape(-1), offsets

    def _unpack(self, weight: np.ndarray, bias: np.ndarray | None) -> None:
        sums = self.sums[0] if len(self.sums) == 1 else np.add.reduce(self.sums, axis=0)
        np.take(sums, self._weights, out=weight[: len(self._weights)], mode="clip")
        if bias is not None:
            np.take(sums, self._offsets, out=bias[: len(self._offsets)], mode="clip")
