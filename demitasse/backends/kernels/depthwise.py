"""Depthwise convolution, grouped convolution of few channels, and their gradients.

The gradients are computed in one pass: each pixel of the input is multiplied by the same gradients
of outputs as its own gradient sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar, NamedTuple

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.bound import BoundKernel
from demitasse.backends.kernels.epilogue import NOTHING, Rectifier
from demitasse.backends.kernels.filter_packing import OrderedFilters, part_sums
from demitasse.backends.kernels.images import Images, OutputFields, first_channels, need_layout
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Output
from demitasse.backends.kernels.language.target import is_x86
from demitasse.backends.kernels.language.values import (
    FLOAT,
    Vector,
    Word,
    chunk,
    fma,
    maximum,
    minimum,
    rearranged,
)
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.kernels.windows import (
    ConvolutionFields,
    Inside,
    RegisterTile,
    Tiles,
    WindowCode,
    WindowConvolution,
    WindowFields,
    WindowSchedule,
    columns_read,
    decline_many,
    for_each_tile,
    inside,
    window_values,
)
from demitasse.backends.step import decline_if

PIXELS = {4: 7, 8: 6, 16: 7}
"""Floats of a vector -> pixels whose sums fit into registers, with the columns of a row of taps."""

SUMS = {4: 14, 8: 8, 16: 14}
"""Floats of a vector -> pixels whose sums fit into registers with the filters of a row of taps."""

ROWS_EACH = 8
"""Rows of outputs that each thread has at least; with fewer, threads divide the channels too."""

MOST_TAPS = 128
"""Most taps of a window, times outputs of a channel, or members of groups smaller than vectors:
kernels are unrolled."""

MOST_MEMBERS = 16
"""Greatest number of channels of a group."""

MOST_OUTPUTS = 4
"""Greatest number of outputs of a channel that is a group."""

GRADIENT_PIXELS = 8
"""Greatest number of pixels of the input in a tile, unless the stride is larger."""

PART_CHANNELS, PART_ROWS = 2048, 4
"""Channels of all parts together, and rows of each part at least: threads divide the parts, whose
number depends on shapes alone so that no bit depends on the threads."""


class Group(NamedTuple):
    """A group of channels.

    Attributes:
        members: Channels of the group.
        outputs: Outputs of the group, for each of its channels; 1 unless it is a single channel.
    """

    members: int = 1
    outputs: int = 1

    @property
    def size(self) -> int:
        """The greater number of the group's channels and outputs."""
        return self.members * self.outputs

    def __str__(self) -> str:
        return f"{self.members}" + f"to{self.outputs}" * (self.outputs > 1)


SINGLE = Group()


@dataclass(frozen=True)
class DepthwiseSchedule(WindowSchedule):
    """A convolution of groups of few channels with as many outputs, or of single channels.

    A strip is an output row of one image, or a part of its channels.
    """

    kernel: ClassVar[str] = "depthwise"

    @property
    def group(self) -> Group:
        return Group(self.x[1] // self.op.group, self.y[1] // self.x[1])

    @property
    def channels(self) -> int:
        """Channels of a pixel of the input; those that fill a vector up are zeros."""
        return max(self.x[1], self.width)

    @property
    def outputs(self) -> np.ndarray:
        """Output channels of the groups of each vector of channels."""
        each = self.group.outputs
        return np.add.outer(np.multiply(self.vectors, each), np.arange(self.width * each))

    @property
    def code(self) -> str:
        grouped = self.group.members > 1
        return f"grouped llvm:{self.tuning.instructions}" if grouped else super().code

    @cached_property
    def vectors(self) -> list[int]:
        """First channel of each vector; the last begins early where they do not divide."""
        return first_channels(self.channels, self.width)

    @property
    def most(self) -> int:
        return (PIXELS if self.group.members == 1 else SUMS)[self.width]

    @property
    def parts(self) -> int:
        """Into how many parts the channels of a row are divided."""
        few = self.y[0] * self.y[2] < ROWS_EACH * self.tuning.threads
        return min(self.tuning.threads, len(self.vectors)) if few else 1


def has_loop(of: ops.Conv | Shape) -> bool:
    """Return whether the gradient of a large window's input has a loop over phases of rows."""
    alike = of.dilation[0] == 1 and of.kernel[0] % of.stride[0] == 0  # as many taps reach each
    return alike and math.prod(of.kernel) > MOST_TAPS


def plan_depthwise(
    op: ops.Conv, x: ops.Shape, y: ops.Shape, tuning: Tuning, *, back: bool = False
) -> DepthwiseSchedule:
    """Return the schedule of a depthwise or grouped convolution; shapes are (N, C, H, W).

    With ``back``, windows are large, and only the gradient of the input has a kernel.

    Raises:
        Declined: Groups are large or divide no vectors, axes are not two, or windows are large.
    """
    schedule = DepthwiseSchedule(op, x, y, tuning)
    (members, outputs), width = schedule.group, tuning.width
    tuning.require("depthwise" if members == 1 else "grouped")
    smaller, larger = sorted((members, width))
    whole = op.group > 1 and x[1] % width == larger % smaller == 0
    fits = members == 1 or (whole and members <= MOST_MEMBERS)
    spreads = members == 1 and outputs <= MOST_OUTPUTS and x[1] >= width
    decline_if(
        len(op.kernel) != 2 or y[1] % x[1] or not fits or (outputs > 1 and not spreads),
        f"depthwise convolution takes two axes; groups of up to {MOST_MEMBERS} channels and as "
        f"many outputs, which are vectors of {width} or divide them; or, of {width} channels or "
        f"more, each with up to {MOST_OUTPUTS} outputs",
    )
    decline_if(back and not has_loop(op), f"a window of {op.kernel} without a loop over phases")
    unrolled = math.prod(op.kernel) * (members if members < width else 1) * outputs
    unrolled //= op.stride[0] if back else 1
    decline_if(unrolled > MOST_TAPS, f"a window of {op.kernel}; kernels take {MOST_TAPS} taps")
    if not back:
        decline_many(schedule.tile, op)
    return schedule


Load = Callable[[Word], Vector]
"""Function that loads, from the address of a pixel's channels, a member of each channel's group."""


def for_each_member(
    k: Kernel, group: Group, place: Word, sums: list[Vector],
    body: Callable[[Load, Word, list[Vector]], None], single: Load | None = None,
) -> None:  # fmt: skip
    """Write ``body`` for each member, or else each output, of the groups of a vector of channels.

    ``body`` takes the function that loads the member, its number, and the sums, which it updates.
    The vector is ``place`` bytes from the first channel of a pixel. ``single`` loads channels that
    are groups of their own, by default of float32. Each member has a loop of its own, for LLVM
    schedules few instructions better.
    """
    members, outputs = group
    if group.size == 1:
        body(single or k.load, k.word(0), sums)
    elif members >= k.width:
        with k.loop(members, vectors=sums) as member:
            moved = member.i * FLOAT - place % (members * FLOAT)
            body(lambda at: k.broadcast(at + moved), member.i, member.vectors)
        sums[:] = member.vectors
    else:
        for number in range(group.size):
            groups = [lane - lane % members for lane in range(k.width)]
            lanes = [lane * outputs + number for lane in groups]
            with k.loop(k.no_cse(k.word(1)), vectors=sums) as once:
                load = partial(_load_lanes, k, outputs, lanes)
                body(load, once.i + number, once.vectors)
            sums[:] = once.vectors


def _load_lanes(k: Kernel, vectors: int, lanes: Sequence[int], at: Word) -> Vector:
    """Load so many vectors, and return the elements at the given indices."""
    [found] = rearranged([k.load(k.no_cse(at + i * k.vector_bytes)) for i in range(vectors)], lanes)
    return found


class DepthwiseFields(ConvolutionFields):
    """A depthwise convolution."""

    vectors: Word
    parts: Word
    """Parts of the channels, which threads divide."""


@DepthwiseFields.kernel("depthwise")
def _kernel(k: Kernel, f: DepthwiseFields, code: WindowCode, group: Group) -> None:
    with k.parallel_loop(f.x.images, f.y.rows, f.parts) as (image, row, part):
        output = f.y.row(image, row, code.sizes[1])
        vectors = chunk(f.vectors, part, f.parts)
        write_row(k, f, code, image, row, vectors, output, group, prefetches=True)


def write_row(
    k: Kernel, f: DepthwiseFields, code: WindowCode, image: Word, row: Word,
    vectors: tuple[Word, Word], output: Word, group: Group = SINGLE, *, prefetches: bool = False,
) -> None:  # fmt: skip
    """Write the outputs of some vectors of channels for a row of windows, from an address on.

    With ``prefetches``, later tiles of the rows that no window above has, and of the outputs, are
    prefetched.
    """
    top = row * f.step_down - f.top
    x_size, y_size = code.sizes
    rows = [f.x.row_or(f.zeros, image, top + f.down * i, x_size) for i in range(code.rows)]

    x_step, y_step = f.x.column_stride * x_size, f.y.column_stride * y_size

    def body(first: Word, inside: Inside) -> None:
        column = (first * code.tile.stride - f.left) * x_step
        tile = output + first * y_step
        if prefetches:
            for below in rows[-code.tile.stride :]:  # strides of both axes are mostly equal
                _prefetch_tile(k, below + column, x_step * (code.tile.pixels * code.tile.stride))
            _prefetch_tile(k, tile, y_step * code.tile.pixels)
        _sum_windows(k, f, code, vectors, [row + column for row in rows], tile, group, *inside)

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
    rows: Sequence[Word], output: Word, group: Group, inside: range,
) -> None:  # fmt: skip
    """Write the sums of a tile of windows, vector after vector of channels.

    ``rows`` are addresses of the first column in the rows of the input, which may be outside;
    ``inside`` are the columns that are not.
    """
    pixels, wide, *_ = code.tile
    x_size, y_size = code.sizes
    x_step, y_step = f.x.column_stride * x_size, f.y.column_stride * y_size
    load, store = k.access(x_size)[0], k.access(y_size)[1]
    first, last = (vector * k.vector_bytes for vector in vectors)
    last_place, each = (f.x.channels - k.width) * FLOAT, wide * group.members * k.vector_bytes
    again = (lambda word: word) if is_x86() else k.no_cse
    with k.loop(last, first, k.vector_bytes) as vector:
        place = minimum(vector.i, last_place)  # begins early where channels fill no whole vectors
        for number in range(group.outputs):
            filters = f.filters + vector.i * (code.rows * wide * group.size)
            filters = filters + number * code.rows * each
            target = place * group.outputs + number * k.vector_bytes
            offset = f.offsets + target  # which NEON loads faster than it copies
            sums = [k.load(again(offset)) for _ in range(pixels)]
            lanes = [(number * k.width + lane) // group.outputs for lane in range(k.width)]
            for i, row in enumerate(rows):
                source = row + place // (FLOAT // x_size), x_step
                add = partial(_add_taps, k, code.tile, filters + i * each, source, inside)
                if group.outputs > 1:
                    add(partial(_load_lanes, k, 1, lanes), k.word(0), sums)
                else:
                    for_each_member(k, group, place, sums, add, load)
            then = code.rectifying(k, f.rectifier, target)
            there = output + target // (FLOAT // y_size)
            for pixel, total in enumerate(sums):
                store(then(total), there + y_step * pixel)


def _add_taps(
    k: Kernel, tile: RegisterTile, filters: Word, row: tuple[Word, Word], inside: range,
    load: Load, member: Word, sums: list[Vector],
) -> None:  # fmt: skip
    """Add to the sums of a tile a row of its windows: the products of a member of each group.

    ``row`` is the address of the first column, and the bytes from one to the next.
    """
    filters = filters + member * (tile.taps * k.vector_bytes)
    taps = [k.load(filters + tap * k.vector_bytes) for tap in range(tile.taps)]
    for column, reached in columns_read(tile).items():
        number = load(row[0] + row[1] * column) if column in inside else k.constant(0.0)
        for tap, pixel in reached:
            sums[pixel] = fma(number, taps[tap], sums[pixel])


def filter_order(schedule: DepthwiseSchedule, *, gradients: bool = False) -> np.ndarray:
    """Return the index of each weight in C order; those that fill a vector up have any index.

    The outputs of groups are a vector's lanes, or else their inputs for ``gradients``.

    Shape: (vectors, rows of taps, members, taps of a row, width).
    """
    group, kernel, channels = schedule.group, schedule.op.kernel, schedule.outputs
    order = np.arange(schedule.channels * group.size * math.prod(kernel))
    order = order.reshape(-1, group.size, group.members, *kernel)
    if gradients:
        order = order.swapaxes(1, 2)
        channels = np.add.outer(schedule.vectors, np.arange(schedule.width))
    each = group.size if gradients else group.members
    by_channel, channels = order.reshape(-1, each, *kernel), channels.reshape(-1, schedule.width)
    ordered: np.ndarray = by_channel[channels].transpose(0, 3, 2, 4, 1)
    return ordered.clip(max=schedule.y[1] * group.members * math.prod(kernel) - 1)


class DepthwiseOperands(OrderedFilters):
    """Operands of a depthwise convolution.

    Attributes:
        values: Fields of the kernel; ``x.at``, ``y.at`` and ``offsets`` are given with each call.

    Raises:
        ValueError: Channels of ``x`` or ``y`` are not contiguous.
    """

    def __init__(self, schedule: DepthwiseSchedule, x: Images, y: Images, then: Rectifier) -> None:
        channels = schedule.channels
        need_layout(x.fits(channels) and y.fits(channels), x, y)
        super().__init__(filter_order(schedule), schedule.tuning)
        self.rectifier = then.numbers(channels * schedule.group.outputs)
        self.values = DepthwiseFields.values(
            **window_values(schedule.op, x, y, schedule.tiles),
            filters=self.filters,
            rectifier=self.rectifier,
            vectors=len(schedule.vectors),
            parts=schedule.parts,
        )


class DepthwiseConvolution(DepthwiseOperands, WindowConvolution):
    """A depthwise convolution, with an offset for each channel and an epilogue."""

    def __init__(
        self, schedule: DepthwiseSchedule, x: Images, y: Images, then: Rectifier = NOTHING
    ) -> None:
        DepthwiseOperands.__init__(self, schedule, x, y, then)
        code = schedule.code_with(then)._replace(sizes=(x.element_bytes, y.element_bytes))
        kernel = _kernel(schedule.width, code, schedule.group)
        WindowConvolution.__init__(self, schedule, kernel, self.values, self.rectifier)


class Shape(NamedTuple):
    """Parameters that the kernel's code depends on.

    Attributes:
        pad: Columns of padding, modulo the stride.
        pixels: Pixels of a tile, a multiple of the stride.
        data: True if the gradient of the input is computed.
        weights: True if the gradient of the filters is computed.
        bias: True if the gradient of the bias is computed.
        offset: True if the gradient of the input has addends.
    """

    kernel: tuple[int, ...]
    group: Group
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pad: int
    pixels: int
    data: bool
    weights: bool
    bias: bool
    offset: bool

    def __str__(self) -> str:
        sizes = *self.kernel, self.group, *self.stride, *self.dilation, self.pad, self.pixels
        flags = "_data" * self.data + "_weights" * self.weights + "_bias" * self.bias
        flags += "_offset" * self.offset
        return "x".join(map(str, sizes)) + flags

    @property
    def sums(self) -> int:
        """Sums of a vector of channels: of each tap of each member, and of the biases."""
        return self.products + self.group.outputs

    @property
    def products(self) -> int:
        """Taps of all members of a vector of channels."""
        return math.prod(self.kernel) * self.group.size

    def taps(self, axis: int, phase: int) -> list[tuple[int, int]]:
        """Return the taps that reach a pixel, and for each the output, counted from the last.

        ``phase`` is the place of the pixel in the padded image, modulo the stride.
        """
        stride, dilation = self.stride[axis], self.dilation[axis]
        reached = [(tap, phase - tap * dilation) for tap in range(self.kernel[axis])]
        return [(tap, away // stride) for tap, away in reached if away % stride == 0]

    def columns(self) -> dict[int, list[tuple[int, int]]]:
        """Return the outputs of a row that reach a tile: for each, its taps and their pixels."""
        found: dict[int, list[tuple[int, int]]] = {}
        for pixel in range(self.pixels):
            more, phase = divmod(pixel + self.pad, self.stride[1])
            for tap, away in self.taps(1, phase):
                found.setdefault(more + away, []).append((tap, pixel))
        return dict(sorted(found.items()))

    @property
    def begin(self) -> int:
        """The first of these outputs, counted from the tile's own."""
        return min(self.columns(), default=0)

    def tiles(self, columns: int, y_columns: int, left: int) -> Tiles:
        """Return the tiles of a row of the input, and of the outputs that reach each tile.

        ``left`` are the columns of padding before the first.
        """
        across, reached = self.stride[1], self.columns()
        span = max(reached) - self.begin + 1 if reached else 0
        tiles = []
        for at in range(0, columns, self.pixels):
            output = at // across + left // across + self.begin
            pixels, outputs = inside(at, self.pixels, columns), inside(output, span, y_columns)
            tiles.append((at, (pixels, outputs)))
        return Tiles(tuple(tiles))


class GradientFields(WindowFields):
    """The gradients; ``y`` has the gradients of the outputs."""

    dx: OutputFields
    filters: Address
    """Filters: for each vector, tap after tap."""
    sums: Output
    """Sums: for each part and vector, tap after tap, and the sum of the gradients."""
    offsets: Address
    """Addends of the input's gradient, one for each channel."""
    vectors: Word
    parts: Word
    """Parts of the rows of the input, each with sums of its own."""


@GradientFields.kernel("depthwise_gradients")
def _gradient_kernel(k: Kernel, f: GradientFields, shape: Shape, tiles: Tiles) -> None:
    each, down = shape.sums * k.vector_bytes, shape.stride[0]
    begin, end = chunk(f.parts * f.vectors, *k.thread())
    with k.loop(f.parts) as part:
        above = part.i * f.vectors
        vectors = maximum(begin - above, 0), minimum(end - above, f.vectors)
        sums = f.sums + above * each
        top, bottom = chunk(f.x.images * f.x.rows, part.i, f.parts)
        with k.when(vectors[0] < vectors[1]):
            with k.loop(vectors[1] * each, vectors[0] * each, k.vector_bytes) as place:
                k.store(k.constant(0.0), sums + place.i)
            if shape.bias:
                _add_gradients(k, f, shape, part.i, vectors, sums)
            with k.loop(bottom, top) as row:
                image, line = row.i // f.x.rows, row.i % f.x.rows
                padded, looped = line + f.top, has_loop(shape)
                y, phase = padded // down, padded % down
                every = [(phase + down * n, -n) for n in range(shape.kernel[0] // down)]
                with k.cases(phase.constant(0) if looped else phase) as case:
                    for number in range(1 if looped else down):
                        case(number)
                        taps = every if looped else shape.taps(0, number)
                        reached = [(n, f.y.row_or(f.zeros, image, y + away)) for n, away in taps]
                        rows = Rows(f.x.row(image, line), f.dx.row(image, line), reached)
                        _add_row(k, f, shape, tiles, rows, vectors, sums)


def _add_gradients(
    k: Kernel, f: GradientFields, shape: Shape, part: Word, vectors: tuple[Word, Word], sums: Word
) -> None:
    """Add the gradients of a part of the outputs to the sums of the bias."""
    top, bottom = chunk(f.x.images * f.y.rows, part, f.parts)
    places = [number * k.vector_bytes for number in range(shape.group.outputs)]
    with k.loop(bottom, top) as row, k.loop(vectors[1], vectors[0]) as vector:
        place = minimum(vector.i * k.width, f.x.channels - k.width) * FLOAT
        begin = f.y.row(row.i // f.y.rows, row.i % f.y.rows) + place * shape.group.outputs
        with k.loop(f.y.columns, vectors=[k.constant(0.0)] * len(places)) as column:
            pixel = begin + column.i * f.y.column_stride * FLOAT
            numbers = [k.load(pixel + at) for at in places]
            column.vectors = [a + b for a, b in zip(column.vectors, numbers, strict=True)]
        own = sums + (vector.i * shape.sums + shape.products) * k.vector_bytes
        for at, total in zip(places, column.vectors, strict=True):
            k.store(k.load(own + at) + total, own + at)


class Rows(NamedTuple):
    """Addresses in a row of the input, in its gradient, and in the rows of outputs that reach it.

    Each of these belongs to a row of taps.
    """

    x: Word
    dx: Word
    reached: Sequence[tuple[Word | int, Word]]


def _add_row(
    k: Kernel, f: GradientFields, shape: Shape, tiles: Tiles, rows: Rows,
    vectors: tuple[Word, Word], sums: Word,
) -> None:  # fmt: skip
    """Write the gradients of a row of the input, and add the row's products to ``sums``."""
    x_step, dx_step, y_step = (image.column_stride * FLOAT for image in (f.x, f.dx, f.y))
    if shape.weights:
        k.touch(rows.x, f.x.row_bytes)
    if shape.data:
        k.touch(rows.dx, f.dx.row_bytes)
    for _, row in rows.reached[:1]:  # which no row of the input has seen yet
        k.touch(row, f.y.row_bytes)

    def body(first: Word, inside: Inside) -> None:
        across = shape.stride[1]
        output = (first // across + f.left // across + shape.begin) * y_step
        reached = [(tap, row + output) for tap, row in rows.reached]
        tile = Rows(rows.x + first * x_step, rows.dx + first * dx_step, reached)
        _add_tile(k, f, shape, tile, inside, vectors, sums)

    for_each_tile(k, f.tiles, tiles, body)


def _add_tile(
    k: Kernel, f: GradientFields, shape: Shape, tile: Rows, inside: Inside,
    vectors: tuple[Word, Word], sums: Word,
) -> None:  # fmt: skip
    """Write the gradients of a tile, and add its products, vector after vector of channels."""
    pixels, wide = inside[0], shape.kernel[1]
    x_step, dx_step, y_step = (image.column_stride * FLOAT for image in (f.x, f.dx, f.y))
    first, last = (vector * k.vector_bytes for vector in vectors)
    last_place, zero = (f.x.channels - k.width) * FLOAT, k.constant(0.0)
    with k.loop(last, first, k.vector_bytes) as vector:
        place = minimum(vector.i, last_place)  # begins early where channels fill no whole vectors
        filters, own = f.filters + vector.i * shape.products, sums + vector.i * shape.sums
        gradients = [k.load(f.offsets + place) if shape.offset else zero] * len(pixels)
        numbers = {i: k.load(tile.x + x_step * i + place) for i in pixels if shape.weights}
        for tap_row, row in tile.reached:
            at = tap_row * (shape.group.size * wide * k.vector_bytes)
            places = filters + at, own + at, row + place * shape.group.outputs
            add = partial(_add_reached, k, shape, inside, places, y_step, numbers)
            for_each_member(k, shape.group, place, gradients, add)
        if shape.data:
            for i, gradient in zip(pixels, gradients, strict=True):
                k.store(gradient, tile.dx + dx_step * i + place)


def _add_reached(
    k: Kernel, shape: Shape, inside: Inside, places: tuple[Word, Word, Word], y_step: Word,
    numbers: dict[int, Vector], load: Load, member: Word, gradients: list[Vector],
) -> None:  # fmt: skip
    """Add a row of outputs' gradients, those of a member of each group, times filters and pixels.

    ``places`` are addresses of the filters of a row of taps, of their sums, and of the outputs.
    """
    (pixels, outputs), wide = inside, shape.kernel[1]
    filters, sums, row = places
    taps = [(member * wide + tap) * k.vector_bytes for tap in range(wide)]
    weights = [k.load(filters + at) for at in taps if shape.data]
    totals, columns, first = [k.constant(0.0)] * wide, shape.columns(), shape.begin
    for j in outputs:
        dy = load(row + y_step * j)
        for tap, pixel in columns.get(first + j, ()):
            i = pixel - pixels.start
            if pixel in pixels and shape.data:
                gradients[i] = fma(dy, weights[tap], gradients[i])
            if pixel in pixels and shape.weights:
                totals[tap] = fma(dy, numbers[pixel], totals[tap])
    if shape.weights:
        for at, total in zip(taps, totals, strict=True):
            k.store(k.load(sums + at) + total, sums + at)


class DepthwiseGradients(OrderedFilters):
    """The gradients of a depthwise convolution.

    Args:
        schedule: The convolution's schedule.
        images: Those of the input, of the outputs' gradient, and of the input's gradient.
        weights: Whether the gradient of the filters is computed.
        data: Whether the gradient of the input is computed.
        bias: Whether the gradient of the bias is computed.
        offset: Whether the gradient of the input has addends, which ``take_offsets`` takes.

    Attributes:
        sums: The sums of all parts. Shape: (parts, vectors, taps and biases, width).
        nbytes: Bytes of the filters, the sums and the offsets.

    Raises:
        ValueError: Channels are not contiguous.
    """

    def __init__(
        self, schedule: DepthwiseSchedule, images: tuple[Images, Images, Images], *,
        weights: bool = True, data: bool = True, bias: bool = False, offset: bool = False,
    ) -> None:  # fmt: skip
        self.schedule, op, width, (x, y, dx) = schedule, schedule.op, schedule.width, images
        (n, _, height, columns), channels, across = schedule.x, schedule.channels, op.stride[1]
        need_layout(all(one.fits(channels) for one in images), *images)
        pixels = min(
            range(across, max(across, GRADIENT_PIXELS) + 1, across),
            key=lambda count: (math.ceil(columns / count) * (count + 1), -count),
        )
        shape = Shape(
            op.kernel, schedule.group, op.stride, op.dilation, op.pad[1] % across, pixels, data,
            weights, bias, offset,
        )  # fmt: skip
        parts = max(1, min(PART_CHANNELS // channels, n * height // PART_ROWS))
        order = filter_order(schedule, gradients=True)
        super().__init__(order, schedule.tuning)
        vectors = len(order)
        self.sums = aligned(parts * vectors * shape.sums * width)
        self.sums = self.sums.reshape(parts, vectors, shape.sums, width)
        self._offsets = aligned(channels)
        self.nbytes += self.sums.nbytes + self._offsets.nbytes
        tiles = shape.tiles(columns, schedule.y[3], op.pad[1])
        values = GradientFields.values(
            **window_values(op, x, y, tiles, gradient=True), dx=OutputFields.of(dx),
            filters=self.filters, offsets=self._offsets, sums=self.sums, vectors=vectors,
            parts=parts,
        )  # fmt: skip
        kernel = _gradient_kernel(width, shape, tiles)
        self._sum = BoundKernel(schedule.kernel, kernel, values, schedule.tuning)
        places = np.arange(self.sums[0].size).reshape(self.sums.shape[1:])
        own, biases = slice(schedule.x[1]), schedule.group.outputs  # other lanes fill the vector up
        by_tap, by_output = places[:, :-biases, own], places[:, -biases:].reshape(vectors, -1)
        self._add_weights = part_sums(self.sums, order[..., own], by_tap, schedule.tuning)
        outputs = schedule.outputs[:, : schedule.y[1]]
        by_output = by_output[:, : outputs.shape[1]]
        self._add_bias = part_sums(self.sums, outputs, by_output, schedule.tuning)

    def take_offsets(self, offsets: np.ndarray) -> None:
        """Copy new offsets of the channels of the input's gradient, (C,); the first are zeros."""
        channels = self.schedule.x[1]
        self._offsets[:channels] = offsets[:channels]

    def __call__(
        self, source: np.ndarray, dy: np.ndarray, weight: np.ndarray | None = None,
        bias: np.ndarray | None = None, dx: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        """Write the gradients of the weights in C order, of the bias, (C,), and of the input."""
        self._sum(source, dy, self.sums if dx is None else dx)
        if weight is not None:
            self._add_weights(self.sums, weight)
        if bias is not None:
            self._add_bias(self.sums, bias)
