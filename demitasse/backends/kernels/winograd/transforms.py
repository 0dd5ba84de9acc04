"""Matrices of constants times vectors, written as few instructions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.words import Vector, Word, fma

__all__ = ["rows_of_product", "some_rows", "times_both", "times_vectors", "transform"]

IN_REGISTERS = {4: 20, 8: 12, 16: 20}
"""Floats of a vector -> vectors between the two matrices, up to which most stay in registers. In
memory each would be read as soon as it is written."""

WRITTEN_OUT = 6
"""Columns of a tile up to which its code is written out."""


def times_vectors(
    k: Kernel, matrix: np.ndarray, values: Sequence[Vector], rows: range | None = None
) -> list[Vector]:
    """Return ``matrix @ values``, one vector for each row, or for each of some rows.

    Rows of two points that differ in their sign alone are the sum and the difference of an even and
    an odd part, which are computed once. Columns that are alike but for signs are multiplied with
    the sum and the difference of their values.
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
"""Writes how a vector of a tile is read, given its row and column."""


Rows = Callable[[range], list[list[Vector]]]
"""Writes some rows of a product."""


def some_rows(high: int, wide: int, width: int, step: int = 1) -> Iterator[range]:
    """Yield the rows of a product whose vectors stay in registers together.

    Args:
        high: How many rows there are.
        wide: Vectors of a row.
        width: Floats of a vector.
        step: Of how many rows there are whole numbers.
    """
    count = max(1, IN_REGISTERS[width] // (wide * step)) * step
    for first in range(0, high, count):
        yield range(first, min(first + count, high))


def times_rows(
    k: Kernel, matrix: np.ndarray, wide: int, load: Load, rows: range
) -> list[list[Vector]]:
    """Return some rows of a matrix times a tile.

    Args:
        k: The kernel.
        matrix: Shape (R, K).
        wide: How many columns a tile has.
        load: Writes how a vector of the tile is read.
        rows: Which of them.
    """
    columns = [
        times_vectors(k, matrix, [load(row, column) for row in range(matrix.shape[1])], rows)
        for column in range(wide)
    ]
    return [list(row) for row in zip(*columns, strict=True)]


def rows_of_product(
    k: Kernel, matrix: np.ndarray, wide: int, tile: Word, row_bytes: Word, column_bytes: Word
) -> Rows:
    """Return what writes some rows of a matrix times a tile in memory.

    A wide tile's are all written to memory first, by a loop: written out, its code would take long
    to compile.

    Args:
        k: The kernel.
        matrix: Shape (R, K).
        wide: How many columns a tile has.
        tile: Address of (K, wide) vectors.
        row_bytes: From one row of the tile to the next.
        column_bytes: From one column to the next.
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
    """Write a tile of vectors times matrices from both sides, some rows at a time.

    Args:
        k: The kernel.
        matrices: For the tile's columns and for its rows.
        load: Writes how a vector of the tile is read.
        store: Writes what becomes of a result, given its row and column.
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

    Its arguments are the tile's address, the bytes from one of its rows to the next and from one of
    its columns to the next, where the first point goes, the bytes from there to the next one, and
    to where the next tile's first point goes. The lines of that tile's points are fetched: they lie
    far apart, and few stores can wait for their lines.

    Args:
        module: What it becomes a part of.
        name: Of the kernel.
        matrices: The two of them, ``down`` and ``across``; of numbers by themselves where the tile
            is a row or a column.
        width: Floats of a vector.
    """
    k = Kernel(module, name, 6, width)
    tile, row_bytes, column_bytes, target, point_bytes, ahead_bytes = k.arguments
    down, across = matrices
    wide = len(across)
    for place in range(len(down) * wide):
        k.prefetch(target + ahead_bytes + point_bytes * place, writes=True)

    def store(row: int, column: int, value: Vector) -> None:
        k.store(value, target + point_bytes * (row * wide + column))

    product = rows_of_product(k, down, across.shape[1], tile, row_bytes, column_bytes)
    _times_across(k, len(down), across, product, store)
    k.done()
    return k
