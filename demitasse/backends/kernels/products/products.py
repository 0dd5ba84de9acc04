"""Products of small matrices whose sums stay in registers.

A kernel computes c = a @ b, or c += a @ b, for as many columns as one, two or three vectors hold.
The rows are taken a few at a time, as many as there are registers for: each number of ``a`` is
spread over a vector and multiplied with a row of ``b``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

from demitasse.backends.kernels.language.kernel import FLOAT, Kernel, Value
from demitasse.backends.kernels.products.registers import ROWS, a_few_at_a_time, by_panel, multiply

__all__ = ["products"]

UNROLLED = 4
"""Turns of the innermost loop that are written out where distances are known."""


@cache
def products(width: int, *, packed: bool = False) -> dict[int, int]:
    """Return the kernels' addresses by the number of vectors of a panel.

    Their arguments are: ``a``, the bytes from one of its rows to the next, the bytes from one of
    its columns to the next; ``b``, the bytes from one of its rows to the next; ``c``, the bytes
    from one of its rows to the next; rows, the length of the sums, and whether they are added to
    ``c``.

    Args:
        width: Floats of a vector.
        packed: Whether the columns of ``a`` lie side by side, and the rows of ``b`` one behind the
            other, whatever the arguments say.
    """
    kind = "packed" if packed else "product"
    return by_panel(kind, width, 10, partial(_write, packed=packed))


def _write(k: Kernel, vectors: int, *, packed: bool) -> None:
    a, a_row, a_column, b, b_row, c, c_row, rows, length, adds = k.arguments
    most, size = ROWS[k.width][vectors], FLOAT * k.width
    if packed:
        a_column, b_row = FLOAT, size * vectors
    end = k.add(b, k.times(b_row, length))

    def turns(
        totals: list[Value], left: Value, begin: Value, stop: Value, count: int, unrolled: int
    ) -> tuple[list[Value], Value]:
        """Write turns of the innermost loop; return the sums, and where the next column is."""
        with k.loop(stop, begin, k.times(b_row, unrolled), carry=[*totals, left]) as loop:
            *totals, left = loop.values
            for turn in range(unrolled):
                right = k.add(loop.i, k.times(b_row, turn))
                columns = [k.load(k.add(right, size * j)) for j in range(vectors)]
                here = k.add(left, k.times(a_column, turn))
                multiply(
                    k, totals, [k.add(here, k.times(a_row, row)) for row in range(count)], columns
                )
            loop.next = [*totals, k.add(left, k.times(a_column, unrolled))]
        *totals, left = loop.out
        return totals, left

    def sums(starts: Sequence[Value], count: int) -> None:
        left, c = starts
        places = [
            k.add(c, k.times(c_row, row), size * j) for row in range(count) for j in range(vectors)
        ]
        totals, begin = [k.constant(0.0)] * len(places), b
        if packed and count == most:
            middle = k.minus(end, k.times(k.rest(length, UNROLLED), b_row))
            totals, left = turns(totals, left, begin, middle, count, UNROLLED)
            begin = middle
        totals, _ = turns(totals, left, begin, end, count, 1)
        k.accumulate(list(zip(totals, places, strict=True)), adds)

    a_few_at_a_time(k, rows, most, (a, c), (a_row, c_row), sums)
    k.done()
