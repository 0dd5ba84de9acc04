"""Matrices of constants times vectors, written as few instructions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from demitasse.backends.kernels.language.kernel import FLOAT, Kernel, Value

__all__ = ["columns", "combined", "line", "transform"]

Row = np.ndarray


def combined(k: Kernel, matrix: np.ndarray, values: Sequence[Value]) -> list[Value]:
    """Return ``matrix @ values``, one vector for each row.

    Of two points that differ in their sign alone, the rows are the sum and the difference of an
    even and an odd part, which are computed once; and columns are for values that are first added
    and subtracted.
    """
    matrix, values = _folded(k, matrix, values)
    found: dict[int, Value] = {}
    for first, second, sign in _pairs(matrix):
        even, odd = (
            _dot(k, (matrix[first] + s * matrix[second]) / 2, values) for s in (sign, -sign)
        )
        found[first] = k.plus(even, odd)
        found[second] = k.less(even, odd) if sign > 0 else k.less(odd, even)
    return [
        found[row] if row in found else _dot(k, matrix[row], values) for row in range(len(matrix))
    ]


def _folded(
    k: Kernel, matrix: np.ndarray, values: Sequence[Value]
) -> tuple[np.ndarray, list[Value]]:
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
                values[first], values[second] = k.plus(one, two), k.less(one, two)
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


def _dot(k: Kernel, row: Row, values: Sequence[Value]) -> Value:
    """Return the sum of the values times the numbers of a row."""
    # those that need no multiplication first, for the others are multiplied and added at once
    terms = sorted(
        ((float(c), value) for c, value in zip(row, values, strict=True) if c),
        key=lambda term: abs(term[0]) != 1,
    )
    factor, value = terms[0]
    if abs(factor) == 1:
        total = value if factor == 1 else k.negative(value)
    else:
        total = k.product(k.constant(factor), value)
    for factor, value in terms[1:]:
        if factor == 1:
            total = k.plus(total, value)
        elif factor == -1:
            total = k.less(total, value)
        else:
            total = k.multiply_add(k.constant(factor), value, total)
    return total


def columns(
    k: Kernel, matrix: np.ndarray, source: Value, steps: tuple[Value, Value], scratch: Value
) -> None:
    """Write ``matrix`` times each column of a tile of vectors to ``scratch``, in C order.

    Args:
        k: The kernel.
        matrix: Shape (R, K).
        source: Address of the tile, (K, K) vectors.
        steps: Bytes from one row to the next, and from one column to the next.
        scratch: Address of (R, K) vectors.
    """
    wide, size = matrix.shape[1], FLOAT * k.width
    with k.loop(wide) as loop:
        column = k.add(source, k.times(loop.i, steps[1]))
        values = [k.load(k.add(column, k.times(steps[0], row))) for row in range(wide)]
        target = k.add(scratch, k.times(loop.i, size))
        for row, value in enumerate(combined(k, matrix, values)):
            k.store(value, k.add(target, row * wide * size))


def transform(module: object, name: str, matrix: np.ndarray, width: int) -> Kernel:
    """Return a kernel: out[r, s] = sum over i, j of matrix[r, i] * matrix[s, j] * tile[i, j].

    Its arguments are the tile's address, the bytes from one of its rows to the next and from one of
    its columns to the next, where the first point goes, the bytes from there to the next one, and
    scratch for as many vectors as the matrix has numbers.
    """
    k = Kernel(module, name, 6, width)
    source, row, column, target, point, scratch = k.arguments
    high, wide = matrix.shape
    columns(k, matrix, source, (row, column), scratch)
    with k.loop(high) as loop:
        values = line(k, scratch, loop.i, wide)
        first = k.add(target, k.times(k.times(loop.i, high), point))
        for place, value in enumerate(combined(k, matrix, values)):
            k.store(value, k.add(first, k.times(point, place)))
    k.done()
    return k


def line(k: Kernel, scratch: Value, row: Value, wide: int) -> list[Value]:
    """Return a row of vectors out of scratch."""
    size = FLOAT * k.width
    first = k.add(scratch, k.times(row, wide * size))
    return [k.load(k.add(first, place * size)) for place in range(wide)]
