"""Matrices of constants times vectors, written as few instructions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.words import Vector, Word, fma

__all__ = ["load_row", "times_both", "times_columns", "times_vectors", "transform"]


def times_vectors(k: Kernel, matrix: np.ndarray, values: Sequence[Vector]) -> list[Vector]:
    """Return ``matrix @ values``, one vector for each row.

    Rows of two points that differ in their sign alone are the sum and the difference of an even and
    an odd part, which are computed once. Columns that are alike but for signs are multiplied with
    the sum and the difference of their values.
    """
    matrix, values = _folded(k, matrix, values)
    found: dict[int, Vector] = {}
    for first, second, sign in _pairs(matrix):
        even, odd = (
            _dot(k, (matrix[first] + s * matrix[second]) / 2, values) for s in (sign, -sign)
        )
        found[first] = even + odd
        found[second] = even - odd if sign > 0 else odd - even
    return [
        found[row] if row in found else _dot(k, matrix[row], values) for row in range(len(matrix))
    ]


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


def times_columns(
    k: Kernel,
    matrix: np.ndarray,
    wide: int,
    tile: Word,
    row_bytes: Word,
    column_bytes: Word,
    scratch: Word,
) -> None:
    """Write ``matrix`` times each column of a tile of vectors to ``scratch``, in C order.

    Args:
        k: The kernel.
        matrix: Shape (R, K).
        wide: How many columns a tile has, W.
        tile: Address of (K, W) vectors.
        row_bytes: From one row of the tile to the next.
        column_bytes: From one column to the next.
        scratch: Address of (R, W) vectors.
    """
    with k.loop(wide) as loop:
        column = tile + loop.i * column_bytes
        values = [k.load(column + row_bytes * row) for row in range(matrix.shape[1])]
        target = scratch + loop.i * k.vector_bytes
        for row, value in enumerate(times_vectors(k, matrix, values)):
            k.store(value, target + row * wide * k.vector_bytes)


def times_both(
    k: Kernel,
    matrices: tuple[np.ndarray, np.ndarray],
    load: Callable[[int, int], Vector],
    store: Callable[[int, int, Vector], None],
) -> None:
    """Write a small tile of vectors times matrices from both sides, all of it in registers.

    Args:
        k: The kernel.
        matrices: For the tile's columns and for its rows.
        load: Writes how a vector of the tile is read, given its row and column.
        store: Writes what becomes of a result, given its row and column.
    """
    down, across = matrices
    halves = [
        times_vectors(k, down, [load(row, column) for row in range(down.shape[1])])
        for column in range(across.shape[1])
    ]
    for row in range(len(down)):
        for column, value in enumerate(times_vectors(k, across, [half[row] for half in halves])):
            store(row, column, value)


def transform(
    module: object,
    name: str,
    matrices: tuple[np.ndarray, np.ndarray],
    width: int,
    *,
    past: bool = False,
    fetches: bool = False,
) -> Kernel:
    """Return a kernel: out[r, s] = sum over i, j of down[r, i] * across[s, j] * tile[i, j].

    Its arguments are the tile's address, the bytes from one of its rows to the next and from one of
    its columns to the next, where the first point goes, the bytes from there to the next one, and
    scratch for as many vectors as there are out[r, j].

    Args:
        module: What it becomes a part of.
        name: Of the kernel.
        matrices: The two of them, ``down`` and ``across``; of numbers by themselves where the tile
            is a row or a column.
        width: Floats of a vector.
        past: Whether the points are written past the caches, to addresses of whole vectors; whoever
            calls it fences.
        fetches: Whether the lines are fetched that the next tile's points go to: these lie far
            apart, and few stores can wait for their lines. One more argument then is the bytes from
            where the first point goes to where the next tile's does.
    """
    k = Kernel(module, name, 6 + fetches, width)
    tile, row_bytes, column_bytes, target, point_bytes, scratch = k.arguments[:6]
    down, across = matrices
    for place in range(len(down) * len(across) if fetches else 0):
        k.prefetch(target + k.arguments[6] + point_bytes * place, writes=True)

    def put(values: Sequence[Vector], first: Word) -> None:
        for place, value in enumerate(values):
            (k.store_past if past else k.store)(value, first + point_bytes * place)

    if down.size == 1:
        row = [k.load(tile + column_bytes * place) for place in range(across.shape[1])]
        put(times_vectors(k, across, row), target)
    elif across.size == 1:
        column = [k.load(tile + row_bytes * place) for place in range(down.shape[1])]
        put(times_vectors(k, down, column), target)
    else:
        high, wide = len(down), across.shape[1]
        times_columns(k, down, wide, tile, row_bytes, column_bytes, scratch)
        with k.loop(high) as line:
            values = load_row(k, scratch, line.i, wide)
            put(times_vectors(k, across, values), target + line.i * len(across) * point_bytes)
    k.done()
    return k


def load_row(k: Kernel, scratch: Word, row: Word, wide: int) -> list[Vector]:
    """Return a row of vectors out of scratch."""
    first = scratch + row * (wide * k.vector_bytes)
    return [k.load(first + place * k.vector_bytes) for place in range(wide)]
