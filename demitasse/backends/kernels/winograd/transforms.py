"""Winograd transforms of tiles: products with two matrices, and the input transform."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np

from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Output, Struct, Values
from demitasse.backends.kernels.language.values import FLOAT, INT, Vector, Word, fma
from demitasse.backends.kernels.windows import Padded, bordered
from demitasse.backends.kernels.winograd.blocks import Block, StripFields, each_strip

IN_REGISTERS = {4: 20, 8: 12, 16: 20}
"""Floats of a vector -> vectors between the two matrices, up to which most stay in registers. In
memory each would be read as soon as it is written."""

WRITTEN_OUT = 6
"""Columns of a tile up to which its code is written out."""


def times_vectors(
    k: Kernel, matrix: np.ndarray, values: Sequence[Vector], rows: range | None = None
) -> list[Vector]:
    """Return ``matrix @ values``, one vector for each row, or for each of some rows.

    Rows of two points of opposite sign are the sum and the difference of an even and an odd part,
    which are computed once. Columns that are equal except for signs are multiplied with the sum and
    the difference of their values.
    """
    rows = range(len(matrix)) if rows is None else rows
    matrix, values = _folded(k, matrix, values)
    found: dict[int, Vector] = {}
    for first, second, sign in _pairs(matrix):
        if first not in rows and second not in rows:
            continue
        even, odd = (
            _dot(k, (matrix[first] + s * matrix[second]) / 2, values) for s in (sign, -sign)
        )
        found[first] = even + odd
        found[second] = even - odd if sign > 0 else odd - even
    return [found[row] if row in found else _dot(k, matrix[row], values) for row in rows]


def _folded(
    k: Kernel, matrix: np.ndarray, values: Sequence[Vector]
) -> tuple[np.ndarray, list[Vector]]:
    """Return a matrix with fewer numbers, and sums and differences for pairs of the values."""
    matrix, values = matrix.copy(), list(values)
    free = set(range(len(values)))
    for first in range(len(values)):
        for second in range(first + 1, len(values)):
            a, b = matrix[:, first].copy(), matrix[:, second].copy()
            alike = np.array_equal(np.abs(a), np.abs(b)) and np.count_nonzero(a) > 2
            if alike and {first, second} <= free:
                matrix[:, first], matrix[:, second] = (a + b) / 2, (a - b) / 2
                one, two = values[first], values[second]
                values[first], values[second] = one + two, one - two
                free -= {first, second}
    return matrix, values


def _pairs(matrix: np.ndarray) -> list[tuple[int, int, int]]:
    """Return rows that share their parts, with the sign of the second one's even part."""
    pairs: list[tuple[int, int, int]] = []
    free = list(range(len(matrix)))
    for first in range(len(matrix)):
        for second in range(first + 1, len(matrix)):
            for sign in (1, -1):
                even, odd = (
                    matrix[first] + sign * matrix[second],
                    matrix[first] - sign * matrix[second],
                )
                terms = np.count_nonzero(even) + np.count_nonzero(odd) + 2
                plain = np.count_nonzero(matrix[first]) + np.count_nonzero(matrix[second])
                apart = not np.any((even != 0) & (odd != 0)) and even.any() and odd.any()
                if first in free and second in free and apart and terms < plain:
                    pairs.append((first, second, sign))
                    free = [row for row in free if row not in (first, second)]
    return pairs


def _dot(k: Kernel, row: np.ndarray, values: Sequence[Vector]) -> Vector:
    """Return the sum of the values times the numbers of a row."""
    # those that need no multiplication first, for the others are multiplied and added at once
    terms = sorted(
        ((float(c), value) for c, value in zip(row, values, strict=True) if c),
        key=lambda term: abs(term[0]) != 1,
    )
    factor, value = terms[0]
    if factor == 1:
        total = value
    elif factor == -1:
        total = -value
    else:
        total = k.constant(factor) * value
    for factor, value in terms[1:]:
        if factor == 1:
            total = total + value
        elif factor == -1:
            total = total - value
        else:
            total = fma(k.constant(factor), value, total)
    return total


Load = Callable[[int, int], Vector]
"""Loads the vector in a row and a column of a tile."""

Rows = Callable[[range], list[list[Vector]]]
"""Writes some rows of a product."""


def some_rows(high: int, wide: int, width: int) -> Iterator[range]:
    """Yield ranges of a product's rows, ``wide`` vectors each, that stay in registers together."""
    count = max(1, IN_REGISTERS[width] // wide)
    for first in range(0, high, count):
        yield range(first, min(first + count, high))


def times_rows(
    k: Kernel, matrix: np.ndarray, wide: int, load: Load, rows: range
) -> list[list[Vector]]:
    """Return some rows of a matrix, (R, K), times a tile, (K, wide)."""
    columns = [
        times_vectors(k, matrix, [load(row, column) for row in range(matrix.shape[1])], rows)
        for column in range(wide)
    ]
    return [list(row) for row in zip(*columns, strict=True)]


def rows_of_product(
    k: Kernel, matrix: np.ndarray, wide: int, tile: Word, row_bytes: Word, column_bytes: Word
) -> Rows:
    """Return the writer of some rows of a matrix, (R, K), times a tile in memory, (K, wide).

    All rows of a wide tile's product are stored first, by a loop: unrolled code would take long to
    compile.
    """

    def load(row: int, column: int | Word) -> Vector:
        return k.load(tile + row_bytes * row + column_bytes * column)

    if wide <= WRITTEN_OUT:
        return partial(times_rows, k, matrix, wide, load)
    vector = k.vector_bytes
    scratch, row_of_scratch = k.scratch(len(matrix) * wide), wide * vector
    with k.loop(wide) as loop:
        values = [load(row, loop.i) for row in range(matrix.shape[1])]
        for row, value in enumerate(times_vectors(k, matrix, values)):
            k.store(value, scratch + loop.i * vector + row * row_of_scratch)

    def from_scratch(rows: range) -> list[list[Vector]]:
        firsts = [scratch + row * row_of_scratch for row in rows]
        return [[k.load(first + column * vector) for column in range(wide)] for first in firsts]

    return from_scratch


def times_both(
    k: Kernel,
    matrices: tuple[np.ndarray, np.ndarray],
    load: Load,
    store: Callable[[int, int, Vector], None],
) -> None:
    """Write a tile of vectors times matrices for its columns and for its rows, some rows at a time.

    ``store`` is called with the row, the column and the vector of each result.
    """
    down, across = matrices
    rows = partial(times_rows, k, down, across.shape[1], load)
    _times_across(k, len(down), across, rows, store)


def _times_across(
    k: Kernel,
    high: int,
    across: np.ndarray,
    product: Rows,
    store: Callable[[int, int, Vector], None],
) -> None:
    """Write the rows of a product times a matrix for rows."""
    for rows in some_rows(high, across.shape[1], k.width):
        for row, values in zip(rows, product(rows), strict=True):
            for column, value in enumerate(times_vectors(k, across, values)):
                store(row, column, value)


def transform(
    module: object, name: str, matrices: tuple[np.ndarray, np.ndarray], width: int
) -> Kernel:
    """Return a kernel: out[r, s] = sum over i, j of down[r, i] * across[s, j] * tile[i, j].

    The kernel's arguments are the tile's address and the bytes to its next row and column; the
    address of the first position and the bytes to the next; the bytes to the next tile's first
    position. The kernel prefetches the next tile's lines, which are far apart. The matrices are
    ``down`` and ``across``; a 1x1 matrix if the tile is a row or a column.
    """
    k = Kernel(module, name, 6, width)
    tile, row_bytes, column_bytes, target, position_bytes, ahead_bytes = k.arguments
    down, across = matrices
    wide = len(across)
    for place in range(len(down) * wide):
        k.prefetch(target + ahead_bytes + position_bytes * place, writes=True)

    def store(row: int, column: int, value: Vector) -> None:
        k.store(value, target + position_bytes * (row * wide + column))

    product = rows_of_product(k, down, across.shape[1], tile, row_bytes, column_bytes)
    _times_across(k, len(down), across, product, store)
    k.done()
    return k


class ImageFields(Struct):
    """A batch of images whose channels are contiguous."""

    at: Address
    image_stride: Word
    row_stride: Word
    column_stride: Word
    vectors: Word
    """Number of vectors of a pixel."""
    vector_table: Address
    """The columns of :class:`Tiled`."""


class OutputFields(ImageFields):
    """A batch of images that is written."""

    at: Output


class Tiled(NamedTuple):
    """A vector of a pixel, in the kernel.

    The vector is at bytes from the beginning of the pixel and of the tile's channels. The image has
    ``top`` and ``left`` zeros around it.
    """

    pixel_bytes: Word
    channel_bytes: Word
    height: Word
    width: Word
    top: Word
    left: Word


def image_values(
    images: Images,
    size: tuple[int, int],
    width: int,
    pad: tuple[int, int] = (0, 0),
    *,
    of: type[ImageFields] = ImageFields,
) -> Values:
    """Return the values of the fields but for the address."""
    vectors = images.vectors(width)
    table = np.array(
        [(FLOAT * offset, FLOAT * first, *size, *pad) for first, offset in vectors], np.int64
    )
    return of.values(
        image_stride=images.image_stride,
        row_stride=images.row_stride,
        column_stride=images.column_stride,
        vectors=len(table),
        vector_table=table,
    )


class Positions(NamedTuple):
    """Layout of transformed tiles; ``at`` is the first tile at the first position."""

    at: Word
    tile_bytes: Word
    position_bytes: Word


@contextmanager
def each_vector(k: Kernel, images: ImageFields) -> Iterator[Tiled]:
    """Write a loop over the vectors of a pixel."""
    with k.loop(images.vectors) as vector:
        columns = len(Tiled._fields)
        yield Tiled(*k.load_words(images.vector_table + vector.i * (columns * INT), columns))


def cut(
    k: Kernel, f: StripFields, images: ImageFields, block: Block, transform: Kernel,
    tile: tuple[int, int], step: tuple[int, int], target: Positions,
) -> None:  # fmt: skip
    """Write the input transform of all tiles of a block's strips, to ``target``.

    Tiles have the rows and columns ``tile``, and are ``step`` rows and columns apart.

    Vector by vector, a strip is copied to a buffer with zero padding, where its rows are
    contiguous.
    """
    vector, (high, wide), (down, across) = k.vector_bytes, tile, step
    columns = f.tile_columns * across + (wide - across)
    row_bytes = columns * vector
    with each_strip(k, f, block) as strip, each_vector(k, images) as tiled:
        source = images.at + strip.image * images.image_stride * FLOAT + tiled.pixel_bytes
        first = strip.row * down - tiled.top
        with k.loop(high) as line:
            y = first + line.i
            row = source + (y * images.row_stride - tiled.left * images.column_stride) * FLOAT
            copy = block.scratch + line.i * row_bytes
            padded = Padded(tiled.height, tiled.width, tiled.left, columns)
            begin, end = bordered(k, y, padded, copy, k.constant(0.0), vector)
            with k.loop(end, begin) as column:
                value = k.load(row + column.i * images.column_stride * FLOAT)
                k.store(value, copy + column.i * vector)
        with k.loop(f.tile_columns) as number:
            k.call(
                transform,
                block.scratch + number.i * (across * vector),
                row_bytes,
                vector,
                target.at + tiled.channel_bytes + (strip.tile + number.i) * target.tile_bytes,
                target.position_bytes,
                target.tile_bytes,
            )
