"""Convolution of small groups of contiguous channels, and the gradients of filters and bias."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar, NamedTuple

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.epilogue import NOTHING, Rectifier, rectifying
from demitasse.backends.kernels.image_fields import OutputFields
from demitasse.backends.kernels.images import Images, first_channels, need_layout
from demitasse.backends.kernels.language import command_queue
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Arguments, OptionalAddress
from demitasse.backends.kernels.language.words import (
    FLOAT,
    INT,
    Vector,
    Word,
    choose,
    chunk,
    fma,
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
from demitasse.backends.step import decline_if

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
    def input_gradient(self) -> GroupedSchedule | None:
        """Schedule of the input's gradient as a grouped convolution; None if unsupported."""
        op, (high, wide) = self.op, self.op.kernel
        (down, right), (top, left) = op.dilation, op.pad
        pad = (high - 1) * down - top, (wide - 1) * right - left
        if not self.shared or op.stride != (1, 1) or min(pad) < 0:
            return None
        transposed = ops.Conv(**{**vars(op), "bottom": op.top, "top": op.bottom, "pad": pad})
        return replace(self, op=transposed, x=self.y, y=self.x)

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
    fits = 1 < reads <= width <= y[1] and (shared or writes % width == 0)
    decline_if(
        len(op.kernel) != 2 or op.group == 1 or not fits or op.kernel[1] > WIDEST,
        f"convolution of groups takes two axes, groups of 2 to {width} channels that divide a "
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
    order = [lane // shared * shared + channel for lane in range(k.width)]
    return permuted(k.load(k.no_cse(pixel)), order)


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

    def update(self, weights: np.ndarray, *, backward: bool = False) -> None:
        """Copy new weights in C order; ``backward`` for the gradient of their input."""
        _, rows, channels, taps, _ = self.filters.shape
        shape = self.schedule.y[1], channels, rows, taps
        by_filter = weights[: math.prod(shape)].reshape(shape)
        if backward:
            by_group = by_filter.reshape(-1, channels, channels, rows, taps)
            by_filter = by_group.swapaxes(1, 2)[..., ::-1, ::-1].reshape(shape)
        self.filters[...] = by_filter[self._order].transpose(0, 3, 2, 4, 1)


MOST_SUMS = {4: 24, 8: 12, 16: 24}
"""Floats of a vector -> sums that are in registers at a time."""


class GradientFields(WindowFields):
    """The gradient of the filters; the output is its gradient here, which is read."""

    inside: Word
    """The first window of a row that sees no column outside the image."""
    inside_end: Word
    """End of the range, exclusive."""
    sums: Address
    """Sums: for each vector and row of taps, channel after channel, tap after tap."""
    bias: OptionalAddress
    """Sums of the gradient, vector after vector; 0 if there is no bias."""
    vectors: Word
    """Number of vectors of filters."""
    vector_table: Address
    """Columns: bytes from the beginning of an input pixel to the channels read, and from the
    beginning of a gradient's pixel to the vector's channels."""


class Filter(NamedTuple):
    """Parameters of the filters that the kernel's code depends on; ``channels`` of a group."""

    rows: int
    taps: int
    stride: int
    dilation: int
    channels: int

    def __str__(self) -> str:
        return "x".join(map(str, self))

    def parts(self, width: int) -> Iterator[range]:
        """Yield channels whose sums are in registers at a time."""
        most = max(1, MOST_SUMS[width] // self.taps)
        for first in range(0, self.channels, most):
            yield range(first, min(first + most, self.channels))


@GradientFields.kernel("grouped_gradient")
def _gradient_kernel(k: Kernel, f: GradientFields, shape: Filter) -> None:
    row_bytes = shape.channels * shape.taps * k.vector_bytes
    begin, end = chunk(f.vectors * shape.rows, *k.thread())  # no sum is divided
    with k.loop(end, begin) as part:
        vector, line = part.i // shape.rows, part.i % shape.rows
        x, y = k.load_words(f.vector_table + vector * (2 * INT), 2)
        sums = f.sums + part.i * row_bytes
        with k.loop(f.images * f.y.rows) as place:
            row = f.row(place.i)
            with k.when((line < 1) & (f.bias > 0)):
                dy, bias = row.output + y, f.bias + vector * k.vector_bytes
                with k.loop(row.columns, vectors=[k.constant(0.0)]) as window:
                    [total] = window.vectors
                    window.vectors = [total + k.load(dy + window.i * row.output_bytes)]
                k.store(k.load(bias) + window.vectors[0], bias)
            seen = row.top + row.down * line
            with k.when((seen > -1) & (seen < row.height)):
                source = row.image + seen * row.row_bytes + x
                for channels in shape.parts(k.width):
                    first = sums + channels.start * shape.taps * k.vector_bytes
                    _add_row(k, f, shape, row, source, row.output + y, channels, first)


def _add_row(
    k: Kernel, f: GradientFields, shape: Filter, row: Row, source: Word, dy: Word,
    channels: range, sums: Word,
) -> None:  # fmt: skip
    """Add the products of a row of windows to the sums of some channels.

    The products are summed by themselves first: sums of partial sums are more exact. The row of the
    input begins at ``source``, the gradient of the output at ``dy``.
    """
    orders = [
        [lane // shape.channels * shape.channels + channel for lane in range(k.width)]
        for channel in channels
    ]
    totals = [k.constant(0.0)] * (len(orders) * shape.taps)

    def windows(first: Word | int, last: Word, totals: list[Vector], *, inside: bool) -> None:
        with k.loop(last, first, vectors=totals) as window:
            gradient = k.load(dy + window.i * row.output_bytes)
            for tap in range(shape.taps):
                column = window.i * shape.stride - row.left + tap * shape.dilation
                pixel = source + column * row.column_bytes
                if not inside:
                    there = (column > -1) & (column < row.width)
                    pixel = choose(there, pixel, row.zeros)
                numbers = k.load(pixel)
                for place, order in enumerate(orders):
                    at = place * shape.taps + tap
                    window.vectors[at] = fma(gradient, permuted(numbers, order), window.vectors[at])
        totals[:] = window.vectors

    windows(0, f.inside, totals, inside=False)
    windows(f.inside, f.inside_end, totals, inside=True)
    windows(f.inside_end, row.columns, totals, inside=False)
    for at, total in enumerate(totals):
        place = sums + at * k.vector_bytes
        k.store(k.load(place) + total, place)


def _inside(op: ops.Conv, columns: int, outputs: int) -> tuple[int, int]:
    """Return the first window of a row that sees only the image, and that after the last."""
    left, stride, reach = op.pad[1], op.stride[1], (op.kernel[1] - 1) * op.dilation[1]
    first = min(-(-left // stride), outputs)
    last = (columns - 1 - reach + left) // stride + 1
    return first, max(first, min(last, outputs))


class GroupedGradient:
    """The gradient of the filters of groups of which several have a vector, and of the bias.

    Attributes:
        sums: The gradient of each vector's filters. Shape: (vectors, rows, channels, taps, width).
    """

    def __init__(self, parts: GroupedSchedule, x: Images, y: Images, *, bias: bool = False) -> None:
        self.parts, width, op = parts, parts.width, parts.op
        if not parts.shared:
            message = f"groups of {parts.channels} channels; give groups of less than a vector"
            raise ValueError(message)
        need_layout(parts.fits(x) and parts.fits(y), x, y)
        (rows, taps), channels = op.kernel, parts.channels
        firsts = np.array(parts.vectors)
        self.sums, self._order = parts.filter_memory(), parts.filter_order
        self._kernel = _gradient_kernel(
            width, Filter(rows, taps, op.stride[1], op.dilation[1], channels)
        )
        self._bias = aligned(len(firsts) * width).reshape(-1, width)
        inside, inside_end = _inside(op, parts.x[3], parts.y[3])
        self._arguments = Arguments(
            GradientFields.values(
                **window_values(op, x, y, aligned(width), gradient=True),
                inside=inside,
                inside_end=inside_end,
                sums=self.sums,
                bias=self._bias if bias else None,
                vectors=len(firsts),
                vector_table=np.stack([x.place(firsts), y.place(firsts)], axis=1) * FLOAT,
            )
        )

    def __call__(
        self, source: np.ndarray, dy: np.ndarray, weight: np.ndarray, bias: np.ndarray | None
    ) -> None:
        """Write the gradients of the weights, in C order, and of the bias, (M,)."""
        command_queue.enqueue(self._clear, (), None)
        each = {"x.at": source, "y.at": dy}
        self._arguments.run(self._kernel, self.parts.tuning.threads, each)
        command_queue.enqueue(self._unpack, (weight, bias), None)

    def _clear(self) -> None:
        self.sums[...] = self._bias[...] = 0.0

    def _unpack(self, weight: np.ndarray, bias: np.ndarray | None) -> None:
        _, rows, channels, taps, _ = self.sums.shape
        shape = self.parts.y[1], channels, rows, taps
        # a filter that is in two vectors has the same sums in both
        weight[: np.prod(shape)].reshape(shape)[self._order] = self.sums.transpose(0, 4, 2, 1, 3)
        if bias is not None:
            bias[self._order] = self._bias
