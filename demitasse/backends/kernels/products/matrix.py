"""Products of matrices, one of them small, whose sums stay in registers.

A kernel computes c = a @ b, or c += a @ b, for as many columns as one, two or three vectors hold.
The rows are taken a few at a time, as many as there are registers for: each number of ``a`` is
broadcast to a vector and multiplied with a row of ``b``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.words import FLOAT, Vector, Word
from demitasse.backends.kernels.products.registers import (
    Panels,
    Rows,
    by_panel,
    multiply,
    product_rows,
)

__all__ = ["matrix_products"]

UNROLLED = 4
"""Turns of the innermost loop that are written out where distances are known."""


@cache
def matrix_products(width: int, *, packed: bool = False, begun: bool = False) -> Panels:
    """Return the kernels, by the vectors of a panel.

    Their arguments are: ``a``, the bytes from one of its rows to the next, the bytes from one of
    its columns to the next; ``b``, the bytes from one of its rows to the next; ``c``, the bytes
    from one of its rows to the next; rows, the length of the sums, whether they are added to ``c``,
    and the table of rests.

    Args:
        width: Floats of a vector.
        packed: Whether the columns of ``a`` and the rows of ``b`` are contiguous, and sums are
            written and never added, whatever the arguments say.
        begun: Whether packed sums go on from what is in ``c``, to the bits of one long sum.
    """
    kind = ("packed_on" if begun else "packed") if packed else "product"
    return by_panel(kind, width, 11, partial(_write, packed=packed, begun=begun))


def _write(k: Kernel, vectors: int, of: Rows, *, packed: bool, begun: bool) -> None:
    a, a_row_bytes, a_column_bytes, b, b_row_bytes, c, c_row_bytes, rows, length = k.arguments[:9]
    adds = k.arguments[9]
    if packed:
        a_column_bytes, b_row_bytes = k.word(FLOAT), k.word(k.vector_bytes * vectors)
    end = b + b_row_bytes * length

    def turns(
        totals: list[Vector], left: Word, begin: Word, stop: Word, count: int, unrolled: int
    ) -> tuple[list[Vector], Word]:
        """Write turns of the innermost loop; return the sums, and where the next column is."""
        with k.loop(stop, begin, b_row_bytes * unrolled, vectors=totals, words=[left]) as loop:
            totals, [left] = loop.vectors, loop.words
            for turn in range(unrolled):
                right = loop.i + b_row_bytes * turn
                columns = [k.load(right + k.vector_bytes * j) for j in range(vectors)]
                here = left + a_column_bytes * turn
                multiply(k, totals, [here + a_row_bytes * row for row in range(count)], columns)
            loop.words = [left + a_column_bytes * unrolled]
        return loop.vectors, loop.words[0]

    def sums(starts: Sequence[Word], count: int) -> None:
        left, c = starts
        places = [
            c + c_row_bytes * row + k.vector_bytes * j
            for row in range(count)
            for j in range(vectors)
        ]
        begin, zero = b, k.constant(0.0)
        totals = [k.load(place) if begun else zero for place in places]
        if packed and count == of.most:
            middle = end - length % UNROLLED * b_row_bytes
            totals, left = turns(totals, left, begin, middle, count, UNROLLED)
            begin = middle
        totals, _ = turns(totals, left, begin, end, count, 1)
        sums_and_places = list(zip(totals, places, strict=True))
        if packed:
            for total, place in sums_and_places:
                k.store(total, place)
        else:
            k.accumulate(sums_and_places, adds)

    product_rows(k, rows, of, (a, c), (a_row_bytes, c_row_bytes), sums)
    k.done()
