"""Transforms of tiles: products with two matrices; from images, and to images."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from typing import NamedTuple

import numpy as np

from demitasse.backends.kernels.images import ImageFields, Images, geometry
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Output, Values
from demitasse.backends.kernels.language.values import (
    FLOAT,
    INT,
    Vector,
    Word,
    choose,
    fma,
    maximum,
    minimum,
)
from demitasse.backends.kernels.tuning import FLAT
from demitasse.backends.kernels.windows import DepthFields
from demitasse.backends.kernels.winograd import WinogradSchedule
from demitasse.backends.kernels.winograd.blocks import Block, TileFields
from demitasse.backends.kernels.winograd.matrices import Filtering


def times_vectors(k: Kernel, matrix: np.ndarray, values: Sequence[Vector]) -> list[Vector]:
    """Return ``matrix @ values``, one vector for each row.

    Columns that are equal but for signs are multiplied with the sum and the difference of their
    values. Rows that are equal but for signs are the sum and the difference of two products.
    """
    matrix, values = matrix.copy(), list(values)
    _butterflies(values, _halve(matrix.T))
    pairs = _halve(matrix)
    products = [_dot(k, row, values) for row in matrix]
    _butterflies(products, pairs)
    return products


def _halve(rows: np.ndarray) -> list[tuple[int, int]]:
    """Replace pairs of rows by half their sum and half their difference; return the pairs.

    The rows of a pair are equal but for signs, as those of two points of opposite sign, so that
    each number is in one of the halves.
    """
    pairs: list[tuple[int, int]] = []
    for one, two in combinations(range(len(rows)), 2):
        alike = np.array_equal(np.abs(rows[one]), np.abs(rows[two]))
        free = not any({one, two} & {*pair} for pair in pairs)
        if alike and free and np.count_nonzero(rows[one]) > 2:
            rows[[one, two]] = (rows[one] + rows[two]) / 2, (rows[one] - rows[two]) / 2
            pairs.append((one, two))
    return pairs


def _butterflies(values: list[Vector], pairs: Sequence[tuple[int, int]]) -> None:
    """Replace pairs of values by their sum and their difference."""
    for one, two in pairs:
        values[one], values[two] = values[one] + values[two], values[one] - values[two]


def _dot(k: Kernel, row: np.ndarray, values: Sequence[Vector]) -> Vector:
    """Return the sum of the values times the numbers of a row."""
    # numbers that need no multiplication first: the others are multiplied and added at once
    terms = sorted(
        ((float(number), value) for number, value in zip(row, values, strict=True) if number),
        key=lambda term: abs(term[0]) != 1,
    )
    (number, value), *others = terms
    total = k.constant(number) * value
    for number, value in others:
        total = fma(k.constant(number), value, total)
    return total


Load = Callable[[int, Word | int], Vector]
"""Loads the vector in a row and a column of a tile."""


UNROLLED = 36
"""Vectors between a tile's two products up to which code is unrolled. More are not kept in
registers, and code with loops is as fast and takes half the time to compile."""


def times_both(
    k: Kernel, matrices: tuple[np.ndarray, np.ndarray], load: Load,
    store: Callable[[Word | int, int, Vector], None],
) -> None:  # fmt: skip
    """Write a tile of vectors times matrices for its columns and for its rows.

    ``store`` is called with the row, the column and the vector of each result.
    """
    (down, across), vector = matrices, k.vector_bytes
    (high, rows), columns = down.shape, across.shape[1]

    def column_values(column: Word | int) -> list[Vector]:
        return times_vectors(k, down, [load(row, column) for row in range(rows)])

    def write_row(row: Word | int, values: Sequence[Vector]) -> None:
        for column, value in enumerate(times_vectors(k, across, values)):
            store(row, column, value)

    if high * columns <= UNROLLED:
        for row, values in enumerate(zip(*map(column_values, range(columns)), strict=True)):
            write_row(row, values)
        return
    between = k.scratch(high * columns)
    with k.loop(columns) as column:
        for row, value in enumerate(column_values(column.i)):
            k.store(value, between + (column.i + row * columns) * vector)
    with k.loop(high) as line:
        places = [between + (line.i * columns + at) * vector for at in range(columns)]
        write_row(line.i, [k.load(place) for place in places])


COLUMNS = 7
"""Integers of an entry of the table of vectors."""


class Phase(NamedTuple):
    """Pixels of an image, all or every few rows and columns, in the kernel.

    Attributes:
        image, start: Index of the image; bytes from its first pixel to the phase's.
        rows, columns: Numbers of pixels.
        top, left: Zeros above, and before each row.
    """

    image: Word
    start: Word
    rows: Word
    columns: Word
    top: Word
    left: Word


class TiledFields(ImageFields):
    """Images whose channels are contiguous, and whose phases are cut into tiles."""

    down: Word
    """Phases of an image one below the other that are images, of dilated windows."""
    across: Word
    """Those side by side."""
    down_bytes: Word
    """Bytes from a row of a phase to the next."""
    across_bytes: Word
    """Bytes from a column of a phase to the next."""
    depth: DepthFields
    vectors: Word
    """Number of vectors of a window's pixels."""
    vector_table: Address
    """Columns: bytes from a pixel's first channel, and from a tile's; plane of the window; zeros
    above and on the left of the image, or of its phase that is a channel; rows and columns."""

    @classmethod
    def tiled(cls, images: Images, schedule: WinogradSchedule, *, read: bool = True) -> Values:
        """Return the fields of images that are ``read``, or of written ones."""
        pad, depth = (schedule.pad, schedule.depth) if read else (schedule.margin, FLAT)
        step, firsts = (1, 1), [range(1), range(1)]
        if read != (schedule.phases > 1):
            step, flipped = schedule.filtering.stride, schedule.computes == "input"
            firsts = [axis.firsts_seen(flipped=flipped) for axis in schedule.filtering]
        filters = _seen_pixels(images, pad, step, firsts)
        parts = [(tap, *seen) for tap in range(depth.taps) for seen in filters]
        table = [
            (FLOAT * (start + first), FLOAT * (images.shape[1] * part + first), tap, *sizes)
            for part, (tap, start, *sizes) in enumerate(parts)
            for first in images.vectors(schedule.width)
        ]
        down, across = schedule.dilation
        return cls.values(
            **geometry(images), down=down, across=across,
            down_bytes=FLOAT * images.row_stride * down * step[0],
            across_bytes=FLOAT * images.column_stride * across * step[1],
            depth=DepthFields.of(depth), vectors=len(table),
            vector_table=np.array(table, np.int64),
        )  # fmt: skip

    @contextmanager
    def each_vector(
        self, k: Kernel, image: Word, *, dilated: bool
    ) -> Iterator[tuple[Phase, Word, Word, Word]]:
        """Write a loop over the vectors of a window's pixels.

        A vector is its phase, bytes from a pixel's first channel and from a tile's, and its plane.
        The phases of ``dilated`` windows are images, which follow each other.
        """
        start, rows, columns = image.constant(0), self.rows, self.columns
        if dilated:
            down, across, phases = self.down, self.across, self.down * self.across
            row, column, image = image % phases // across, image % across, image // phases
            start = (row * self.row_stride + column * self.column_stride) * FLOAT
            rows, columns = (
                (rows - row + down - 1) // down,
                (columns - column + across - 1) // across,
            )
        with k.loop(self.vectors) as vector:
            entry = k.load_words(self.vector_table + vector.i * (COLUMNS * INT), COLUMNS)
            channel, into, tap, top, left, *sizes = entry
            rows, columns = (rows, columns) if dilated else sizes
            yield Phase(image, start, rows, columns, top, left), channel, into, tap


def _seen_pixels(
    images: Images, pad: tuple[int, int], step: tuple[int, int], firsts: Sequence[Sequence[int]]
) -> list[tuple[int, int, int, int, int]]:
    """Return what each filter of a window sees: first element, zeros above and before, size.

    The ``firsts`` are rows, and columns, from a window's corner to a filter's.
    """

    def axis(
        size: int, pad: int, step: int, firsts: Sequence[int]
    ) -> Iterator[tuple[int, int, int]]:
        for begin in firsts:
            zeros = -(-max(0, pad - begin) // step)
            first = begin - pad + step * zeros
            yield first, zeros, max(0, -(-(size - first) // step))

    sizes = zip(images.shape[2:], pad, step, firsts, strict=True)
    rows, columns = (list(axis(*of)) for of in sizes)
    return [
        (y * images.row_stride + x * images.column_stride, top, left, high, wide)
        for y, top, high in rows
        for x, left, wide in columns
    ]


class TiledOutputFields(TiledFields):
    """Images that are written, tile by tile."""

    at: Output


def zero_border(k: Kernel, y: Word, phase: Phase, columns: Word, copy: Word) -> tuple[Word, Word]:
    """Write the zeros of a copied row of ``columns`` vectors, and return the range to be copied.

    A row ``y`` outside the phase is all zeros.
    """
    inside = (y > -1) & (y < phase.rows)
    begin = choose(inside, minimum(phase.left, columns), columns)
    end = choose(inside, minimum(phase.left + phase.columns, columns), columns)
    for stop, start in ((begin, 0), (columns, end)):
        with k.loop(stop, start) as column:
            k.store(k.constant(0.0), copy + column.i * k.vector_bytes)
    return begin, end


def input_transform(
    k: Kernel, block: Block, images: TiledFields, matrices: tuple[np.ndarray, np.ndarray],
    step: tuple[int, int], tiles: TileFields, *, dilated: bool = False,
) -> None:  # fmt: skip
    """Write the transform of the tiles of a block's images.

    Vector by vector, a strip is copied with zero padding, where its rows are contiguous.

    Args:
        k: The kernel.
        block: The block.
        images: The images.
        matrices: Those for the columns and for the rows of a tile.
        step: Rows and columns by which tiles lie apart.
        tiles: The transformed tiles.
        dilated: Whether the phases of images are images.
    """
    (high, wide), (down, across) = (matrix.shape[1] for matrix in matrices), step
    vector, positions_of_row = k.vector_bytes, len(matrices[1])
    columns = block.fields.tile_columns * across + (wide - across)

    with (
        block.each_strip() as strip,
        images.each_vector(k, strip.image, dilated=dilated) as (phase, channel, into, tap),
    ):
        plane = images.depth.front(phase.image) + tap
        inside = (plane > -1) & (plane < images.depth.size)
        first = choose(inside, strip.row * down - phase.top, -high)
        origin = images.row(images.depth.image(phase.image, plane), 0) + channel
        origin = origin + phase.start - phase.left * images.across_bytes
        with k.loop(high) as line:
            y = first + line.i
            copy = block.private + columns * line.i * vector
            begin, end = zero_border(k, y, phase, columns, copy)
            row = origin + y * images.down_bytes
            with k.loop(end, begin) as column:
                value = k.load(row + column.i * images.across_bytes)
                k.store(value, copy + column.i * vector)
        with k.loop(block.fields.tile_columns) as tile:
            corner = block.private + tile.i * (across * vector)
            target = block.place(tiles, 0, strip.tile + tile.i) + into

            def load(row: int, column: Word | int) -> Vector:
                return k.load(corner + (columns * row + column) * vector)

            def store(row: Word | int, column: int, value: Vector) -> None:
                position = row * positions_of_row + column
                k.store(value, target + tiles.position_bytes * position)

            times_both(k, matrices, load, store)


class Outputs(NamedTuple):
    """The outputs of a tile, in the kernel.

    Attributes:
        at: Address of the first output.
        rows, columns: Outputs that exist, those before them too, and perhaps more.
        above, before: Rows and columns that do not exist before those that do; or fewer than none.
    """

    at: Word
    row_bytes: Word
    column_bytes: Word
    rows: Word
    columns: Word
    above: Word
    before: Word


def output_transform(
    k: Kernel, of: Filtering, sums: Word, position_bytes: Word, y: Outputs,
    finish: Callable[[Vector], Vector],
) -> None:  # fmt: skip
    """Write the transform of a tile's sums, whose address is given, and ``finish`` each output.

    A tile at an edge is stored to scratch memory, and its outputs that exist are copied.
    """
    (high, wide), vector, side = of.outputs, k.vector_bytes, of.across.side
    scratch = k.scratch(high * wide)
    whole = (y.rows >= high) & (y.columns >= wide) & (y.above < 1) & (y.before < 1)
    at = choose(whole, y.at, scratch)
    row_bytes = choose(whole, y.row_bytes, wide * vector)
    column_bytes = choose(whole, y.column_bytes, vector)

    def load(row: int, column: Word | int) -> Vector:
        return k.load(sums + position_bytes * (row * side + column))

    def store(row: Word | int, column: int, value: Vector) -> None:
        k.store(finish(value), at + row_bytes * row + column_bytes * column)

    times_both(k, (of.down.output, of.across.output), load, store)
    rows, columns = choose(whole, 0, minimum(y.rows, high)), minimum(y.columns, wide)
    above, before = maximum(y.above, 0), maximum(y.before, 0)
    with k.loop(rows, above) as row, k.loop(columns, before) as column:
        value = k.load(scratch + (row.i * wide + column.i) * vector)
        k.store(value, y.at + y.row_bytes * row.i + y.column_bytes * column.i)
