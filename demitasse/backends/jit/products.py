"""Products of small matrices whose sums stay in registers.

A kernel computes c = a @ b, or c += a @ b, for as many columns as one, two or three vectors hold.
The rows are taken a few at a time, as many as there are registers for: each number of ``a`` is
spread over a vector and multiplied with a row of ``b``.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from demitasse.backends.jit.compiler import compiled
from demitasse.backends.jit.kernel import FLOAT, Kernel, Value
from demitasse.backends.jit.panels import WIDEST

__all__ = ["ROWS", "products"]

ROWS = {8: {1: 8, 2: 6, 3: 4}, 16: {1: 16, 2: 14, 3: 9}}
"""Floats of a vector -> vectors of a panel -> rows whose sums fit into the registers, with a row of
``b`` and one number of ``a``: 16 registers of 8 floats, 32 of 16. Fewer than eight sums would wait
for each other."""


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
    names = {vectors: f"{kind}{vectors}x{width}" for vectors in range(1, WIDEST + 1)}

    def write(module: Any) -> None:
        for vectors, name in names.items():
            _write(Kernel(module, name, 10, width, exported=True), vectors, packed=packed)

    found = compiled(f"{kind}x{width}", write, *names.values())
    return {vectors: found[name] for vectors, name in names.items()}


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
                for row in range(count):
                    place = k.add(left, k.times(a_row, row), k.times(a_column, turn))
                    number = k.spread(k.load_number(place))
                    for j, column in enumerate(columns):
                        at = row * vectors + j
                        totals[at] = k.multiply_add(number, column, totals[at])
            loop.next = [*totals, k.add(left, k.times(a_column, unrolled))]
        *totals, left = loop.out
        return totals, left

    def sums(a: Value, c: Value, count: int) -> None:
        places = [
            k.add(c, k.times(c_row, row), size * j) for row in range(count) for j in range(vectors)
        ]
        totals, left, begin = [k.constant(0.0)] * len(places), a, b
        if packed and count == most:
            middle = k.minus(end, k.times(k.rest(length, UNROLLED), b_row))
            totals, left = turns(totals, left, begin, middle, count, UNROLLED)
            begin = middle
        totals, _ = turns(totals, left, begin, end, count, 1)
        found = list(zip(totals, places, strict=True))
        with k.cases(adds) as case:
            case(0)
            for total, place in found:
                k.store(total, place)
            case(1)
            for total, place in found:
                k.store(k.plus(k.load(place), total), place)

    with k.loop(k.divided(rows, most), carry=[a, c]) as loop:
        sums(loop.values[0], loop.values[1], most)
        loop.next = [
            k.add(loop.values[0], k.times(a_row, most)),
            k.add(loop.values[1], k.times(c_row, most)),
        ]
    with k.cases(k.rest(rows, most)) as case:
        for count in range(1, most):
            case(count)
            sums(loop.out[0], loop.out[1], count)
    k.done()
