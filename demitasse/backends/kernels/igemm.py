"""Implicit GEMM: convolution of many channels, with windows of any kind, as a product of matrices.

A row of the left matrix is the window of one output; the right matrix has the filters, in panels
of a few vectors. Windows are copied to a buffer, some taps or channels at a time, and sums of
these blocks are added up in the output. Pixels that are windows of their own are read in place.

Source: K. Goto and R. van de Geijn, *Anatomy of High-Performance Matrix Multiplication*, 2008; the
list of addresses is XNNPACK's indirection buffer (M. Dukhan, *The Indirect Convolution Algorithm*,
2019).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.bound import BoundKernel
from demitasse.backends.kernels.epilogue import NOTHING, Kind, Rectifier, rectifying
from demitasse.backends.kernels.filter_packing import FilterFields, FilterPacking, Order, pack_panel
from demitasse.backends.kernels.images import ImageFields, Images, OutputFields
from demitasse.backends.kernels.language import structs
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.values import (
    FLOAT,
    HALF,
    INT,
    LINE_BYTES,
    Condition,
    Vector,
    Word,
    choose,
    chunk,
    maximum,
    minimum,
)
from demitasse.backends.kernels.products import (
    ROWS,
    Masks,
    column_masks,
    for_each_panel,
    panel_vectors,
    product_sums,
    tile_rows,
)
from demitasse.backends.kernels.tuning import TunedKernel, Tuning
from demitasse.backends.step import decline_if

LENGTH = 512
"""Elements of a window that are copied at a time, at most; as many rows of a panel stay in the
second cache."""

ROW_BYTES = LENGTH * FLOAT + LINE_BYTES
"""From one copied window to the next; a line more than a power of two, so that the same elements of
all windows do not compete for the same lines of the cache."""

MOST_ROWS = 112
"""Windows that are copied at a time, at most; they stay in the second cache."""

WHOLE = 16
"""Channels of a block are a multiple: whole vectors of all widths, so that all have equal bits."""

WIDEST_IN_PLACE = 512
"""Channels up to which pixels are read in place; those of more compete for lines of the cache."""

MOST_IMBALANCE = 1.05
"""Greatest load imbalance (maximum over mean) up to which groups are divided no further."""

CACHED_BYTES = 1 << 20
"""Size of images up to which a core's own caches hold most of them."""

FEW_CHANNELS = 64
"""Channels up to which processors follow the pixels of a tile, which are close to each other."""

NEON = 4
"""Floats of NEON's vectors."""

ENTRY_BYTES = 5 * INT
"""Bytes of a window in the list: address, plane, row and column of its corner, address of its
output."""

UNROLLED = 4
"""Steps of the innermost loop."""

LINES = 2
"""Lines that an unrolled step prefetches of memory that is read after the product."""

LAST = 4
"""With one part in so many of the panels, the last, memory is prefetched that is read next."""

MOST_AXES = 3
"""Spatial axes of images: planes, rows, columns."""

Block = tuple[int, int, int, int, int]
"""First tap, taps, first channel, channels of each tap and first term of a block of sums."""

BLOCK_BYTES = 5 * INT
"""Bytes of a block of sums in the table of blocks."""

COPIED = 4
"""Vectors that are copied at a time."""

COPY_COST, READ_COST = 0.5, 0.75
"""Times to copy a tile of windows, and to read a vector of filters for a block of windows. The unit
is the time to multiply a tile by a vector."""


class ProductFields(FilterFields):
    """Windows of images, and filters of each group in panels."""

    x: ImageFields
    """The input; ``y`` is the output. The channels of all groups lie side by side."""
    y: ImageFields
    step_down: Word
    """Rows of the input from one window to the window below."""
    step_right: Word
    step_deep: Word
    x_planes: Word
    x_plane_stride: Word
    y_planes: Word
    y_plane_stride: Word
    taps: structs.Address
    """Row, column and plane of each tap, in the first window."""
    blocks: structs.Address
    """First tap, taps, first channel, channels of each tap and first term of each block of sums."""
    block_count: Word
    zeros: structs.Address
    """Zeros in place of a pixel outside."""
    groups: Word
    channels: Word
    """Channels of the input of a group."""
    filter_group_stride: Word
    """Elements from the filters of a group to the next's."""
    panels: Word
    """Panels of a group."""
    whole: Word
    """Number of panels without padding."""
    scratch: structs.Scratch
    scratch_bytes: Word
    """Bytes of scratch memory for each part."""
    most_rows: Word
    """Windows that are copied at a time."""
    parts: Word
    """In how many parts the pixels, or the blocks, of a group are divided."""
    filter_parts: Word

    @property
    def pixels(self) -> Word:
        """Pixels of all outputs."""
        return self.y.images * self.y_planes * self.y.rows * self.y.columns


def product_values(
    schedule: IgemmSchedule, blocks: Sequence[Block], x: Images, y: Images, rows: int,
    panel_rows: int, filter_group_stride: int,
) -> tuple[dict[str, int | np.ndarray], int]:  # fmt: skip
    """Return values of the fields, and elements of scratch memory for a call.

    The scratch memory has ``rows`` windows, their list, and ``panel_rows`` of a panel.
    """
    panel = schedule.panel
    size = rows * (ROW_BYTES + ENTRY_BYTES) + panel_rows * panel * FLOAT
    size = -(-size // LINE_BYTES) * LINE_BYTES
    values: dict[str, int | np.ndarray] = {
        "step_down": schedule.step[0],
        "step_right": schedule.step[1],
        "step_deep": schedule.step[2],
        "x_planes": x.planes,
        "x_plane_stride": x.plane_stride,
        "y_planes": y.planes,
        "y_plane_stride": y.plane_stride,
        "taps": np.array([*schedule.taps, (0, 0, 0)], np.int64),
        "blocks": np.array(blocks, np.int64),
        "block_count": len(blocks),
        "zeros": aligned(schedule.channels),
        "groups": schedule.groups,
        "channels": schedule.channels,
        "filter_group_stride": filter_group_stride,
        "panels": schedule.panels,
        "filter_count": schedule.filters,
        "whole": schedule.filters // panel,
        "scratch_bytes": size,
        "most_rows": rows,
    }
    return values, size * schedule.tuning.threads // FLOAT


class Part(NamedTuple):
    """Part of a group's work, in the kernel.

    Attributes:
        group: Number of the group.
        number: Number of the part of the pixels, or blocks.
        panels: The first panel, and the one behind the last.
        filters: Address of the group's filters.
        buffer: Address of copied windows; their list is at ``entries``.
        columns: Address of scratch memory for a panel.
    """

    group: Word
    number: Word
    panels: tuple[Word, Word]
    filters: Word
    buffer: Word
    entries: Word
    columns: Word


@contextmanager
def each_part(k: Kernel, f: ProductFields) -> Iterator[Part]:
    """Write a loop over the thread's parts of the work."""
    thread, threads = k.thread()
    of_pixels = f.groups * f.filter_parts
    begin, end = chunk(f.parts * of_pixels, thread, threads)
    buffer = f.scratch + thread * f.scratch_bytes
    entries = buffer + f.most_rows * ROW_BYTES
    columns = entries + f.most_rows * ENTRY_BYTES
    with k.loop(end, begin) as part:
        number, place = part.i // of_pixels, part.i % of_pixels
        group = place // f.filter_parts
        panels = chunk(f.panels, place % f.filter_parts, f.filter_parts)
        filters = f.filters + group * f.filter_group_stride * FLOAT
        yield Part(group, number, panels, filters, buffer, entries, columns)


class Panels(NamedTuple):
    """Panels of filters.

    Attributes:
        vectors: Vectors of a panel.
        counts: Filters of each panel; of all but the last, and of the last, where these differ.
    """

    vectors: int
    counts: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.vectors}of{'x'.join(map(str, self.counts))}"


class IgemmFields(ProductFields):
    """A convolution."""

    y: OutputFields
    filters: structs.Address
    """Filters: panel after panel, term after term; or in C order."""
    terms: Word
    offsets: structs.Address
    """One offset for each channel of the output."""
    added: structs.OptionalAddress
    """Images that are added before the epilogue, in the layout of the output."""
    quiet: Word
    """First panels, during each of which the next panel is prefetched."""
    ahead: Word
    """Address of memory that is read after the product, and prefetched during the other panels."""
    ahead_step: Word
    """Bytes of it from what an unrolled step prefetches to the next's."""
    rectifier: structs.Address
    """Numbers of the epilogue: slopes of negative sums, one for each channel, or the limits."""


class TileRows(NamedTuple):
    """Rows of a tile.

    Attributes:
        most: Rows of all tiles but the last.
        remainders: Numbers of rows that may be left in place; each has a tile of its own.
        row_bytes: Bytes from one row to the next; 0 if these are known at run time.
    """

    most: int
    remainders: tuple[int, ...] = ()
    row_bytes: int = ROW_BYTES

    def __str__(self) -> str:
        counts = "x".join(map(str, (self.most, *self.remainders)))
        return counts if self.row_bytes in (0, ROW_BYTES) else f"{counts}by{self.row_bytes}"


@IgemmFields.kernel("igemm")
def _kernel(
    k: Kernel, f: IgemmFields, of: TileRows, panels: Panels, *, order: Order, in_place: bool,
    touches: bool, ahead: int, summed: bool, adds: bool, kind: Kind, bf16: bool,
    rounds: bool, y_size: int,
) -> None:  # fmt: skip
    """Write the kernel of tiles of some rows; the sums of several blocks are ``summed``.

    Products are of pairs of ``bf16``, to which windows of float32 are rounded with ``rounds``.
    Outputs have ``y_size`` bytes.

    Of memory that is read after the product, a step prefetches some lines ``ahead``, 0 for none.
    With ``touches``, pixels are read in their order before tiles of them are.
    """
    rows, panel_bytes = of.most, panels.vectors * k.vector_bytes
    x_bytes, y_bytes = f.x.column_stride * FLOAT, f.y.column_stride * y_size
    with each_part(k, f) as part:
        x = f.x.at + part.group * f.channels * FLOAT
        first, last = chunk(f.pixels, part.number, f.parts)
        all_tiles = (last - first + (rows - 1)) // rows
        times = (all_tiles * rows + (f.most_rows - 1)) // f.most_rows
        with k.loop(times) as some:
            start, stop = (tile * rows for tile in chunk(all_tiles, some.i, times))
            origin = first + start
            count = minimum(stop, last - first) - start
            tiles = (count + (rows - 1)) // rows
            if not in_place:
                list_windows(k, f, origin, count, tiles * rows, part.entries, y_size)
            elif touches:
                k.touch(x + origin * x_bytes, count * x_bytes)
            with k.loop(f.block_count) as block:
                *copied, term = k.load_words(f.blocks + block.i * BLOCK_BYTES, 5)
                length = copied[1] * ((copied[3] + 1) // 2 if rounds else copied[3])
                if not in_place:
                    copy_windows(k, f, part, copied, tiles * rows, rounds=rounds)
                even = k.prefetch_step(panel_bytes * UNROLLED, tiles)

                def write_panel(panel: Word, columns: int) -> None:
                    masks = column_masks(k, columns)
                    place = part.group * f.filter_count * FLOAT + panel * panel_bytes
                    y_place = place // (FLOAT // y_size)
                    filters = part.filters + (panel * f.terms + term) * panel_bytes
                    following, step = filters + f.terms * panel_bytes, even
                    if ahead:
                        of_panel = tiles * (length // UNROLLED) * f.ahead_step
                        after = f.ahead + (panel - f.quiet) * of_panel
                        following = choose(panel < f.quiet, following, after)
                        step = choose(panel < f.quiet, step, f.ahead_step)
                    if order:
                        filters = following = part.columns
                        pack_panel(k, f, order, panel, panels.vectors, term, length, filters)

                    def write_tile(row: Word, rows: int, fetched: list[Word]) -> list[Word]:
                        if in_place:
                            left = x + (origin + row) * x_bytes
                        else:
                            left = part.buffer + row * ROW_BYTES
                        lefts = _row_places(k, of.row_bytes or x_bytes, rows)
                        sums, fetched = product_sums(
                            k, length, left, lefts, FLOAT, filters, panel_bytes, len(masks),
                            UNROLLED, fetched, step, ahead, bf16=bf16,
                        )  # fmt: skip
                        # known behind the innermost loop, so that no register holds them in it
                        if in_place:
                            target = f.y.at + (origin + row) * y_bytes + y_place
                            targets = [target + y_bytes * i for i in range(rows)]
                        else:
                            entry = part.entries + row * ENTRY_BYTES + 4 * INT
                            targets = [
                                k.load_word(entry + ENTRY_BYTES * i) + y_place for i in range(rows)
                            ]
                        write = partial(write_sums, k, sums, targets, masks, size=y_size)
                        finish = _epilogue(k, f, place, adds=adds, kind=kind, y_size=y_size)
                        if summed:
                            before, final = block.i > 0, block.i > f.block_count - 2
                            with k.cases(choose(final, 1, 0)) as case:
                                case(1)
                                write(before, finish)
                                case(0)
                                write(before)
                        else:
                            write(None, finish)
                        return fetched

                    full = count // rows if in_place else tiles
                    with k.loop(full, words=[following]) as tile:
                        tile.words = write_tile(tile.i * rows, rows, tile.words)
                    with k.cases(count % rows) as case:
                        for remainder in of.remainders:
                            case(remainder)
                            write_tile(full * rows, remainder, tile.words)

                for_each_panel(k, part.panels, f.whole, panels.counts, write_panel)


Finish = Callable[[Sequence[Vector], Sequence[tuple[Word, int]], Masks], Iterator[Vector]]
"""Takes sums, the address and the number of the vector of each, and masks; returns results."""


def write_sums(
    k: Kernel, sums: Sequence[Vector], targets: Sequence[Word], masks: Masks,
    before: Condition | None = None, finish: Finish | None = None, size: int = FLOAT,
) -> None:  # fmt: skip
    """Write the sums of rows, row after row, or add them to those ``before``.

    All addresses are read before one is written, since rows may have the same address. Sums of a
    ``size`` of 2 bytes are rounded to bfloat16, and fill whole vectors.
    """
    vector_bytes, vectors = k.width * size, range(len(masks))
    places = [(target + vector_bytes * j, j) for target in targets for j in vectors]
    values = sums
    if before is not None:
        values = [
            choose(before, total + k.load(at, masks[j]), total)
            for total, (at, j) in zip(sums, places, strict=True)
        ]
    finished: Iterable[Vector] = values if finish is None else finish(values, places, masks)
    for value, (at, j) in zip(finished, places, strict=True):
        if size == HALF:
            k.store_bfloat(value, at)
        else:
            k.store(value, at, masks[j])


def list_windows(
    k: Kernel, f: ProductFields, origin: Word, count: Word, rows: Word, entries: Word,
    y_size: int = FLOAT,
) -> None:  # fmt: skip
    """Write a list of ``rows``, of ``count`` windows; the rows behind them repeat the last."""
    plane_pixels = f.y.rows * f.y.columns
    image, place = origin // (plane_pixels * f.y_planes), origin % (plane_pixels * f.y_planes)
    plane, place = place // plane_pixels, place % plane_pixels
    start = [image, plane, place // f.y.columns, place % f.y.columns]
    with k.loop(rows, words=start) as one:
        image, plane, row, column = one.words
        corner = [plane * f.step_deep, row * f.step_down, column * f.step_right]
        x = image * f.x.image_stride + _place(f.x, f.x_plane_stride, *corner)
        y = image * f.y.image_stride + _place(f.y, f.y_plane_stride, plane, row, column)
        entry = [f.x.at + x * FLOAT, *corner, f.y.at + y * y_size]
        for i, word in enumerate(entry):
            k.store_word(word, entries + one.i * ENTRY_BYTES + i * INT)
        carry = choose(one.i + 1 < count, 1, 0)
        places = []
        for index, size in ((column, f.y.columns), (row, f.y.rows), (plane, f.y_planes)):
            ends = index + carry >= size
            places.append(choose(ends, 0, index + carry))
            carry = choose(ends, 1, 0)
        one.words = [image + carry, *reversed(places)]


def _place(images: ImageFields, plane_stride: Word, plane: Word, row: Word, column: Word) -> Word:
    """Return the elements from an image's first pixel to another."""
    return plane * plane_stride + row * images.row_stride + column * images.column_stride


@contextmanager
def _each_window(
    k: Kernel, f: ProductFields, part: Part, tap: Word, channel: Word, rows: Word, into: Word,
    step: int,
) -> Iterator[tuple[Word, Word]]:  # fmt: skip
    """Write a loop over ``rows`` windows of the part's list, that are copied ``into`` memory.

    Yields addresses: of a window's pixel at the tap, and of its copy, a ``step`` from the last.
    """
    down, right, deep = k.load_words(tap, 3)
    distance = _place(f.x, f.x_plane_stride, deep, down, right)
    distance = distance + part.group * f.channels + channel
    with k.loop(rows, words=[part.entries, into]) as window:
        entry, target = window.words
        corner, plane, row, column = k.load_words(entry, 4)
        plane, row, column = plane + deep, row + down, column + right
        inside = (row > -1) & (row < f.x.rows) & (column > -1) & (column < f.x.columns)
        inside = inside & (plane > -1) & (plane < f.x_planes)
        yield choose(inside, corner + distance * FLOAT, f.zeros), target
        window.words = [entry + ENTRY_BYTES, target + step]


def copy_windows(
    k: Kernel, f: ProductFields, part: Part, copied: Sequence[Word], rows: Word, *,
    rounds: bool = False,
) -> None:  # fmt: skip
    """Copy some channels of some taps, ``copied``, of the windows in the part's list.

    With ``rounds``, they are rounded to bfloat16.
    """
    tap, taps, channel, channels = copied
    narrower = 2 if rounds else 1  # bytes of a float for each byte that is written
    end, several = channels * FLOAT, k.vector_bytes * COPIED
    middle = end // several * several
    vectors = choose(end < k.vector_bytes, 0, end)

    def copy(source: Word, target: Word, at: Word) -> None:
        store(k.load(source + at), target + at // narrower)

    store = k.store_bfloat if rounds else k.store
    with k.loop(taps, words=[f.taps + tap * (3 * INT), part.buffer]) as one:
        at, into = one.words
        with _each_window(k, f, part, at, channel, rows, into, ROW_BYTES) as (source, target):
            with k.loop(middle, 0, several) as vector:
                for place in range(0, several, k.vector_bytes):
                    copy(source, target, vector.i + place)
            with k.loop(vectors, middle, k.vector_bytes) as vector:
                copy(source, target, minimum(vector.i, end - k.vector_bytes))
            with k.loop(choose(vectors > 0, 0, end), 0, FLOAT) as number:
                store(k.load_float(source + number.i), target + number.i // narrower)
            if rounds:
                k.store_half(k.word(0), target + end // narrower)
        pairs = (channels + 1) // 2 if rounds else channels
        one.words = [at + 3 * INT, into + pairs * FLOAT]


def copy_tiles(
    k: Kernel, f: ProductFields, part: Part, copied: Sequence[Word], windows: Word, rows: int,
    tile_bytes: Word,
) -> None:  # fmt: skip
    """Copy some channels of one tap, ``rows`` of them for one window after the other.

    Vectors may be longer than a row of a tile; the next window overwrites the rest.
    """
    tap, _, channel, channels = copied
    row_bytes, end, tap = rows * FLOAT, channels * FLOAT, f.taps + tap * (3 * INT)
    starts = range(0, row_bytes, k.vector_bytes)
    inside = maximum(end - starts[-1] - k.vector_bytes + row_bytes, 0) // row_bytes * row_bytes
    with _each_window(k, f, part, tap, channel, windows, part.buffer, row_bytes) as (source, into):
        with k.loop(inside, 0, row_bytes, words=[into]) as tile:
            for at in starts:
                k.store(k.load(source + tile.i + at), tile.words[0] + at)
            tile.words = [tile.words[0] + tile_bytes]
        with k.loop(end, inside, row_bytes, words=tile.words) as last:
            for at in starts:
                some = k.lane_mask((end - last.i - at) // FLOAT)
                k.store(k.load(source + last.i + at, some), last.words[0] + at)
            last.words = [last.words[0] + tile_bytes]


def _row_places(k: Kernel, row_bytes: Word | int, rows: int) -> list[Word | int]:
    """Return the bytes from the first row to each.

    An address has a register and another, times up to 8: odd multiples are in registers.
    """
    if isinstance(row_bytes, int):
        return [row_bytes * i for i in range(rows)]
    odd = {i: k.no_cse(row_bytes * i) for i in range(1, rows, 2)}
    factors = [math.gcd(i, 8) for i in range(rows)]
    return [odd[i // by] * by if i else 0 for i, by in enumerate(factors)]


def _epilogue(
    k: Kernel, f: IgemmFields, place: Word, *, adds: bool, kind: Kind, y_size: int
) -> Finish:
    """Return a function that writes offsets, what is added, and the rectifier, for a panel."""

    def load(at: Word, some: Condition | None) -> Vector:
        return k.load_bfloats(at) if y_size == HALF else k.load(at, some)

    def finish(
        sums: Sequence[Vector], places: Sequence[tuple[Word, int]], masks: Masks
    ) -> Iterator[Vector]:
        ats = [place + k.vector_bytes * j for j in range(len(masks))]
        offsets = [k.load(f.offsets + at, some) for at, some in zip(ats, masks, strict=True)]
        then = [rectifying(k, f.rectifier, at, kind) for at in ats]
        values = []
        for total, (at, j) in zip(sums, places, strict=True):
            value = total + offsets[j]
            if adds:
                value += load(at + (f.added - f.y.at), masks[j])
            values.append(value)
        # one after the other, so that curves of all sums do not need registers at a time
        return (then[j](value) for value, (_, j) in zip(values, places, strict=True))

    return finish


@dataclass(frozen=True)
class IgemmSchedule(TunedKernel):
    """A convolution, of each group by itself. Threads divide the outputs, or the filters.

    Attributes:
        taps: Row, column and plane of each tap in the first window, which may be negative.
        step: Rows, columns and planes of the input from one window to the next.
        channels: Channels of the input, in a group.
        filters: Channels of the output, in a group.
        pixels: Pixels of all outputs.
        groups: Number of groups.
        order: Order of filters that are packed on the way; "" if they come in panels.
        merged: Groups of the convolution in each: so many that their filters fill a vector. Filters
            are zeros for the channels of other groups.
        buffered: Numbers of pixels of products whose pixels lie in a core's own buffer, at equal
            distances; none for images.
        paired: Whether the input is in bfloat16, each two channels of which are one.
    """

    kernel, rounds = "igemm", True

    taps: tuple[tuple[int, int, int], ...]
    step: tuple[int, int, int]
    channels: int
    filters: int
    pixels: int
    tuning: Tuning
    groups: int = 1
    order: Order = ""
    merged: int = 1
    buffered: tuple[int, ...] = ()
    paired: bool = False

    @property
    def rounds_input(self) -> bool:
        """True if windows are rounded to bfloat16 as they are copied."""
        return self.tuning.bf16 and not self.paired

    @property
    def each(self) -> int:
        """Channels of a term: two of bfloat16 are in the place of a float."""
        return 2 if self.rounds_input else 1

    def of_pairs(self) -> IgemmSchedule:
        """Return the schedule for an input in bfloat16."""
        return replace(self, channels=self.channels // 2, paired=True)

    def terms(self, taps: int, channels: int) -> int:
        """Return the terms of a window's sum."""
        return taps * -(-channels // self.each)

    @cached_property
    def vectors(self) -> int:
        """Vectors of a panel: two, or others where these compute less in vain."""
        return panel_vectors(self.filters, self.width)

    @property
    def panel(self) -> int:
        """Filters of a panel."""
        return self.vectors * self.width

    @property
    def panels(self) -> int:
        """Number of panels, the last of which may be padded."""
        return -(-self.filters // self.panel)

    @property
    def panel_kinds(self) -> Panels:
        """Filters of the panels, which have code of their own."""
        whole, rest = divmod(self.filters, self.panel)
        return Panels(self.vectors, (self.panel,) * (whole > 0) + (rest,) * (rest > 0))

    @cached_property
    def divided(self) -> tuple[int, int]:
        """In how many parts pixels and panels are divided, of about equal work."""
        rows, copies = ROWS[self.width][self.vectors], not self.reads_pixels
        return self.divide(self.pixels, rows, self.filters, copies=copies)

    def divide(
        self, count: int, at_once: int = 1, filters: int = 0, *, copies: bool = False
    ) -> tuple[int, int]:
        """Return in how many parts ``count`` pieces and the panels of a group are divided.

        The parts have about equal work, and compute ``at_once`` pieces at a time. Each part of the
        pieces reads all ``filters``, each part of the panels reads all pieces; that decides between
        equal ways, or counts as work if the pieces are copied.
        """
        imbalance, counts = self.tuning.imbalance, range(1, self.tuning.threads + 1)
        parts = next(n for n in counts if imbalance(self.groups * n) <= MOST_IMBALANCE)
        ways = [(min(parts // n, count), n) for n in range(1, min(parts, self.panels) + 1)]

        def longest(way: tuple[int, int]) -> float:
            pieces = math.ceil(count / way[0])
            tiles = math.ceil(pieces / at_once)
            ends = (self.panels * part // way[1] for part in range(way[1] + 1))
            vectors = (min(end * self.vectors, -(-self.filters // self.width)) for end in ends)
            most = max(end - begin for begin, end in pairwise(vectors))
            if not copies:
                return tiles * most
            blocks = math.ceil(pieces / MOST_ROWS)
            return tiles * (most + COPY_COST) + blocks * most * READ_COST

        return min(ways, key=lambda way: (longest(way), way[0] * filters + way[1] * count))

    def rows_of(self, count: int) -> int:
        """Return the rows of a tile of ``count``."""
        return tile_rows(count, ROWS[self.width][self.vectors])

    @cached_property
    def rows(self) -> int:
        """Rows of a tile of copied windows."""
        return self.rows_of(self.pixels // self.divided[0])

    def tile_rows(self, x: Images, *, in_place: bool) -> TileRows:
        """Return the rows of the tiles."""
        if not in_place:
            return TileRows(self.rows)
        parts, most = self.divided[0], ROWS[self.width][self.vectors]
        counts = self.buffered or (self.pixels // parts, -(-self.pixels // parts))
        remainders = tuple(sorted({count % most for count in counts} - {0}))
        known = self.buffered and self.width == NEON
        return TileRows(most, remainders, x.column_stride * FLOAT if known else 0)

    def in_place(self, x: Images, y: Images) -> bool:
        """Return whether pixels, which are windows of their own, are read in place."""
        alike = x.is_rows and y.is_rows and x.shape[2:] == y.shape[2:]
        return bool(self.buffered) or (self.reads_pixels and alike)

    @property
    def reads_pixels(self) -> bool:
        """True if pixels that are rows of a matrix are read in place.

        NEON's addresses have no multiples of a register: each row would take another register.
        """
        pixels = (self.taps, self.step) == (((0, 0, 0),), (1, 1, 1))
        few = pixels and self.channels <= WIDEST_IN_PLACE
        return few and self.width > NEON and not self.rounds_input

    def touches(self, x: Images) -> bool:
        """Return whether pixels in place are read in their order before tiles of them are."""
        many = self.channels > FEW_CHANNELS and not self.buffered
        return many and self.groups == 1 and x.contiguous_bytes > CACHED_BYTES

    def blocks(self, *, in_place: bool) -> list[Block]:
        """Return the blocks of sums: first tap, taps, first channel, channels and first term."""
        taps, channels = len(self.taps), self.channels
        if in_place or not taps:
            return [(0, taps, 0, channels, 0)]
        if (one := self.terms(1, channels)) <= LENGTH:
            each = math.ceil(taps / math.ceil(taps / (LENGTH // one)))
            return [
                (tap, min(each, taps - tap), 0, channels, self.terms(tap, channels))
                for tap in range(0, taps, each)
            ]
        each = -(-channels // -(-one // LENGTH))
        each = -(-each // WHOLE) * WHOLE
        return [
            (tap, 1, at, min(each, channels - at), self.terms(tap, channels) + at // self.each)
            for tap in range(taps)
            for at in range(0, channels, each)
        ]


def plan_igemm(op: ops.Conv, x: ops.Shape, y: ops.Shape, tuning: Tuning) -> IgemmSchedule:
    """Return the schedule of a convolution over up to three axes; shapes are (N, C, *spatial).

    Raises:
        Declined: It has more axes.
    """
    tuning.require("igemm")
    decline_if(len(op.kernel) > MOST_AXES, f"implicit GEMM takes up to {MOST_AXES} axes")
    axes = [
        [tap * gap - pad for tap in range(taps)]
        for taps, gap, pad in zip(op.kernel, op.dilation, op.pad, strict=True)
    ]
    planes, rows, columns = [[0]] * (MOST_AXES - len(axes)) + axes
    taps = tuple((row, column, plane) for plane in planes for row in rows for column in columns)
    deep, down, right = [1] * (MOST_AXES - len(axes)) + [*op.stride]
    pixels = y[0] * math.prod(y[2:])
    channels, filters = x[1] // op.group, y[1] // op.group
    most = tuning.width // max(channels, filters)
    merged = max((n for n in range(1, most + 1) if op.group % n == 0), default=1)
    return IgemmSchedule(
        taps, (down, right, deep), channels * merged, filters * merged, pixels, tuning,
        groups=op.group // merged, merged=merged,
    )  # fmt: skip


def dense_schedule(
    rows: int, length: int, outputs: int, tuning: Tuning, order: Order = ""
) -> IgemmSchedule:
    """Return the schedule of a product: rows are images of one pixel; see :func:`row_images`."""
    return IgemmSchedule(((0, 0, 0),), (1, 1, 1), length, outputs, rows, tuning, order=order)


def _prefetch_of(size: int, panels: int, steps: int) -> tuple[int, int]:
    """Return with how many panels, the last, memory is prefetched, and the lines of each step.

    A panel has ``steps``. What is prefetched early is driven out of the cache by filters before it
    is read; many lines of a step wait for each other.
    """
    if not size:
        return 0, 0
    needed = math.ceil(size / max(1, steps * LINES * LINE_BYTES))
    return min(panels, max(needed, math.ceil(panels / LAST))), LINES * (1 + (needed > panels))


def row_images(rows: int, length: int) -> Images:
    """Return a matrix as images of one pixel."""
    return Images.channels_last((rows, length, 1, 1))


class ImplicitGemm:
    """y = filters * windows of x + offset, perhaps plus other images, then a rectifier.

    Args:
        ahead_bytes: Size of the memory that a ``buffered`` product prefetches.

    Attributes:
        kernel: Address of the kernel, which runs with ``values``.
        size: Elements of the packed filters: group after group, panel after panel, of each the
            terms.
        scratch_size: Elements of scratch memory for a call.
        slopes: Factors of negative sums, one for each channel; or the limits.
    """

    def __init__(
        self, schedule: IgemmSchedule, x: Images, y: Images, then: Rectifier = NOTHING,
        filter_stride: int = 0, *, adds: bool = False, ahead_bytes: int = 0,
    ) -> None:  # fmt: skip
        if x.bf16:
            schedule, x = schedule.of_pairs(), x.paired()
        self.schedule, in_place = schedule, schedule.in_place(x, y)
        rows = schedule.tile_rows(x, in_place=in_place)
        blocks = schedule.blocks(in_place=in_place)
        terms = schedule.terms(len(schedule.taps), schedule.channels)
        pixels = max(schedule.buffered, default=0)
        steps = math.ceil(pixels / rows.most) * (terms // UNROLLED)
        fetching, lines = _prefetch_of(ahead_bytes, schedule.panels, steps)
        self.kernel = _kernel(
            schedule.width, rows, schedule.panel_kinds, order=schedule.order, in_place=in_place,
            touches=in_place and schedule.touches(x), ahead=lines, summed=len(blocks) > 1,
            adds=adds, kind=then.kind, bf16=schedule.tuning.bf16,
            rounds=schedule.rounds_input, y_size=y.element_bytes,
        )  # fmt: skip
        of_group = schedule.panels * terms * schedule.panel
        # of a buffer all at once: each panel, and what is prefetched with the panels, comes once
        most = pixels + rows.most if pixels else MOST_ROWS // rows.most * rows.most
        packed = LENGTH if schedule.order else 0
        values, self.scratch_size = product_values(schedule, blocks, x, y, most, packed, of_group)
        self.size, count = schedule.groups * of_group, schedule.groups * schedule.filters
        self._none = aligned(count)
        self._packings: dict[tuple[int, ...], FilterPacking] = {}
        numbers = then.numbers(count + schedule.panel)  # whole vectors are read
        self.slopes = numbers[:count]
        parts, filter_parts = schedule.divided
        self.values = IgemmFields.values(
            **values,
            x=ImageFields.of(x),
            y=OutputFields.of(y),
            terms=terms,
            filter_bytes=filter_stride * FLOAT,
            quiet=schedule.panels - fetching,
            ahead=0,
            ahead_step=ahead_bytes // max(1, fetching * steps),
            rectifier=numbers,
            parts=parts,
            filter_parts=filter_parts,
        )
        self._run = BoundKernel(schedule.kernel, self.kernel, self.values, schedule.tuning)

    def pack(self, weights: np.ndarray, filters: np.ndarray) -> None:
        """Pack weights of a group; ``filters`` are zeros where panels are padded.

        Shapes: (M, C, taps), (size / groups,).
        """
        if not weights.size:  # no tap reaches the pixels
            return
        if weights.strides not in self._packings:
            self._packings[weights.strides] = FilterPacking(self.schedule, weights)
        self._packings[weights.strides](weights, filters)

    def __call__(
        self, source: np.ndarray, target: np.ndarray, filters: np.ndarray,
        offsets: np.ndarray | None, scratch: np.ndarray, added: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        """Convolve, with one offset for each channel of the output; None for zeros."""
        offsets = self._none if offsets is None else offsets
        self._run(filters, source, target, scratch, offsets, added)
