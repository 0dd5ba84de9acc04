"""Depthwise convolution of windows of any size, and its gradients."""

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

PIXELS = 8
"""Windows of a tile: their sums fit into registers, and their pixels into a core's first cache."""

ROWS_EACH = 8
"""Rows of outputs that each thread has at least; with fewer, threads divide the filters too."""


@dataclass(frozen=True)
class GroupedSchedule(ConvSchedule):
    """A depthwise convolution. A part is some of its filters; threads divide its rows, too."""

    kernel: ClassVar[str] = "grouped"

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

        Shape: (vectors, rows, taps, width).
        """
        shape = len(self.vectors), *self.op.kernel, self.width
        return aligned(math.prod(shape)).reshape(shape)

    @cached_property
    def tile(self) -> RegisterTile:
        return plan_tile(self.y[3], PIXELS, self.op)

    @property
    def fetches(self) -> bool:
        """True if pixels are prefetched, because no cache has room for all images."""
        floats = math.prod(self.x) + math.prod(self.y)
        return floats * FLOAT > self.tuning.cached_bytes

    @cached_property
    def parts(self) -> int:
        """Into how many parts the vectors are divided, so that a part's filters stay in a cache."""
        size = self.y[1] * math.prod(self.op.kernel) * FLOAT
        parts = math.ceil(size / self.tuning.group_filter_bytes)
        if self.y[0] * self.y[2] * parts < ROWS_EACH * self.tuning.threads:
            parts = max(parts, self.tuning.threads)
        return min(parts, len(self.vectors))


WIDEST = 11
"""Greatest number of taps of a window's row; kernels are unrolled over taps."""


def plan_grouped(op: ops.Conv, x: ops.Shape, y: ops.Shape, tuning: Tuning) -> GroupedSchedule:
    """Return the schedule of a depthwise convolution; shapes are (N, C, H, W).

    Raises:
        Declined: Groups or windows are unsupported.
    """
    width = tuning.width
    tuning.require("grouped")
    each = 1 < op.group == x[1] == y[1] >= width
    decline_if(
        len(op.kernel) != 2 or not each or op.kernel[1] > WIDEST,
        f"depthwise convolution takes two axes, {width} channels or more, each in a group of its "
        f"own, and windows up to {WIDEST} wide",
    )
    parts = GroupedSchedule(op, x, y, tuning)
    decline_many(parts.tile, op)
    return parts


AHEAD = 2
"""Prefetch distance, in register tiles."""

SECOND = 2
"""Level of the cache for prefetched pixels."""


class GroupedFields(WindowFields):
    """A depthwise convolution."""

    y: OutputFields
    filters: Address
    """Filters: for each vector, row after row, tap after tap."""
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
        fetched: Rows of the input from one row of windows to the next, whose pixels are prefetched;
            0 for none.
    """

    rows: int
    tile: RegisterTile
    fetched: int
    limited: bool

    def __str__(self) -> str:
        fetching = f"_fetching{self.fetched}" if self.fetched else ""
        fetching += "_limited" * self.limited
        return f"{self.rows}x{self.tile}{fetching}"


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
                sums = _summed(k, work, seen, x, filters, sums)
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
    k: Kernel, work: Work, seen: Seen, x: Word, filters: Word, sums: list[Vector]
) -> list[Vector]:
    """Return ``sums`` and the products of a tile's windows with a vector's filters.

    The channels that are read lie ``x`` bytes from the beginning of a pixel.
    """
    tile = work.tile
    columns = columns_read(tile)
    with k.loop(work.rows, vectors=sums, words=[filters]) as row:
        totals, [taps] = row.vectors, row.words
        pixels = [seen(row.i, column, x) for column in columns]
        weights = [k.load(taps + k.vector_bytes * tap) for tap in range(tile.taps)]
        for address, products in zip(pixels, columns.values(), strict=True):
            number = k.load(address)
            for tap, pixel in products:
                totals[pixel] = fma(number, weights[tap], totals[pixel])
        row.vectors, row.words = totals, [taps + k.vector_bytes * tile.taps]
    return row.vectors


class GroupedConvolution(WindowConvolution):
    """A depthwise convolution, with an offset for each channel and an epilogue.

    Attributes:
        filters: The filters of each vector: row after row, tap after tap.
            Shape: (vectors, rows, taps, width).
    """

    def __init__(
        self, parts: GroupedSchedule, x: Images, y: Images, then: Rectifier = NOTHING
    ) -> None:
        width, op = parts.width, parts.op
        firsts = np.array(parts.vectors)
        need_layout(x.fits(width) and y.fits(width), x, y)
        self.filters, self._order = parts.filter_memory(), parts.filter_order
        rectifier = then.numbers(parts.y[1])
        fetched = op.stride[0] if parts.fetches else 0
        values = GroupedFields.values(
            **window_values(op, x, y, aligned(width)),
            filters=self.filters,
            filter_bytes=self.filters[0].nbytes,
            rectifier=rectifier,
            vectors=len(firsts),
            vector_table=np.stack([x.place(firsts), y.place(firsts), firsts], axis=1) * FLOAT,
            parts=parts.parts,
        )
        kernel = _kernel(width, Work(op.kernel[0], parts.tile, fetched, then.limited))
        super().__init__(parts, kernel, values, rectifier)

    def update(self, weights: np.ndarray) -> None:
        """Copy new weights in C order."""
        shape = self.schedule.y[1], *self.schedule.op.kernel
        by_filter = weights[: math.prod(shape)].reshape(shape)
        self.filters[...] = by_filter[self._order].transpose(0, 2, 3, 1)


GroupConvolution = DepthwiseConvolution | GroupedConvolution


def group_convolution(
    parts: GroupedSchedule, x: Images, y: Images, then: Rectifier = NOTHING
) -> GroupConvolution:
    """Return the convolution, by the depthwise kernel up to its windows."""
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
    """The gradient of the input of a depthwise convolution, phase by phase of the strides."""

    def __init__(self, parts: GroupedSchedule, x: Images, y: Images) -> None:
        op, (step_down, step_right) = parts.op, parts.op.stride
        self._shape = op.group, *op.kernel
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
        by_channel = weights[: math.prod(self._shape)].reshape(self._shape)
        for convolution, _, (down, right) in self._parts:
            if down and right:
                turned = by_channel[:, down][..., right]
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
    """Sums: for each part, vector and line of taps, tap after tap, and the sum of the gradients."""
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
    """

    lines: int
    rows: int
    taps: int
    stride: int
    dilation: int

    def __str__(self) -> str:
        return "x".join(map(str, self))

    @property
    def sums(self) -> int:
        """Sums of a line: of products, and of the gradients."""
        return self.rows * self.taps + 1


@GradientFields.kernel("grouped_gradient")
def _gradient_kernel(k: Kernel, f: GradientFields, shape: Filter) -> None:
    units = f.vectors * shape.lines
    begin, end = chunk(f.parts * units, *k.thread())  # no sum is divided
    with k.loop(f.parts) as part:
        above = part.i * units
        first, last = maximum(begin - above, 0), minimum(end - above, units)
        top, bottom = chunk(f.images * f.y.rows, part.i, f.parts)
        with k.when(first < last), k.loop(bottom, top, f.rows) as rows, k.loop(last, first) as unit:
            x, y = k.load_words(f.vector_table + unit.i // shape.lines * (2 * INT), 2)
            sums = f.sums + (above + unit.i) * (shape.sums * k.vector_bytes)
            totals = [k.constant(0.0)] * shape.sums
            with k.loop(minimum(rows.i + f.rows, bottom), rows.i, vectors=totals) as place:
                row = f.row(place.i)
                down = row.down * (unit.i % shape.lines * shape.rows)
                row = row._replace(image=row.image + x, top=row.top + down, output=row.output + y)
                place.vectors = _add_row(k, f, shape, row, place.vectors)
            for at, total in enumerate(place.vectors):  # sums of partial sums are more exact
                where = sums + k.vector_bytes * at
                before = choose(rows.i > top, k.load(where), k.constant(0.0))
                k.store(before + total, where)


def _add_row(
    k: Kernel, f: GradientFields, shape: Filter, row: Row, totals: list[Vector]
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
            windows.vectors = _add_products(k, shape, tile, gradients, seen, windows.vectors)
        totals = windows.vectors
    return totals


def _add_products(
    k: Kernel, shape: Filter, tile: RegisterTile, gradients: list[Vector],
    seen: Callable[[int, int], Word], totals: list[Vector],
) -> list[Vector]:  # fmt: skip
    """Return the sums and the products of a tile's gradients with the input."""
    sums = list(totals)
    for column, products in columns_read(tile).items():
        for i in range(shape.rows):
            number = k.load(seen(i, column))
            for tap, pixel in products:
                at = i * shape.taps + tap
                sums[at] = fma(gradients[pixel], number, sums[at])
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
    """The gradients of the filters and of the bias of a depthwise convolution.

    Attributes:
        sums: The sums of all parts. Shape: (parts, vectors, lines, sums, width).
    """

    def __init__(self, parts: GroupedSchedule, x: Images, y: Images) -> None:
        self.parts, width, op = parts, parts.width, parts.op
        need_layout(x.fits(width) and y.fits(width), x, y)
        high, taps = op.kernel
        each = high if high * taps <= MOST_SUMS[width] else 1
        self._shape = Filter(high // each, each, taps, op.stride[1], op.dilation[1])
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
        shape = len(sums), one.lines, one.rows, one.taps, parts.width
        products = sums[:, :, :-1].reshape(shape).transpose(0, 4, 1, 2, 3)
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
