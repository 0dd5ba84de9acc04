"""Winograd transforms of tiles: products with two matrices, and the input transform."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from typing import NamedTuple

import numpy as np

from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Output, Struct, Values
from demitasse.backends.kernels.language.values import FLOAT, INT, Vector, Word, fma
from demitasse.backends.kernels.windows import Padded, bordered
from demitasse.backends.kernels.winograd.blocks import Block, StripFields, each_strip

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


Load = Callable[[int, int], Vector]
"""Loads the vector in a row and a column of a tile."""

def times_both(
    k: Kernel,
    matrices: tuple[np.ndarray, np.ndarray],
    load: Load,
    store: Callable[[int, int, Vector], None],
) -> None:
    """Write a tile of vectors times matrices for its columns and for its rows.

    ``store`` is called with the row, the column and the vector of each result.
    """
    down, across = matrices
    columns = [
        times_vectors(k, down, [load(row, column) for row in range(down.shape[1])])
        for column in range(across.shape[1])
    ]
    for row, values in enumerate(zip(*columns, strict=True)):
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

    def load(row: int, column: int) -> Vector:
        return k.load(tile + row_bytes * row + column_bytes * column)

    times_both(k, matrices, load, store)
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
