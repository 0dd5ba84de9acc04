"""What kernels have in common whose sums stay in registers: rows of them, for panels of columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from demitasse.backends.kernels.language.compiler import compiled
from demitasse.backends.kernels.language.kernel import Kernel, Value
from demitasse.backends.kernels.products.panels import WIDEST

__all__ = ["ROWS", "a_few_at_a_time", "by_panel", "multiply"]

ROWS = {8: {1: 8, 2: 6, 3: 4}, 16: {1: 16, 2: 14, 3: 9}}
"""Floats of a vector -> vectors of a panel -> rows whose sums fit into the registers, with a row of
columns and one number: 16 registers of 8 floats, 32 of 16. Fewer than eight sums would wait for
each other."""


def by_panel(
    kind: str, width: int, count: int, write: Callable[[Kernel, int], None]
) -> dict[int, int]:
    """Return the addresses of kernels of one kind, by the vectors of a panel.

    Args:
        kind: What they are called; no others of the process are.
        width: Floats of a vector.
        count: How many arguments they have.
        write: Writes one, for so many vectors.
    """
    names = {vectors: f"{kind}_{vectors}x{width}" for vectors in range(1, WIDEST + 1)}

    def module(of: Any) -> None:
        for vectors, name in names.items():
            write(Kernel(of, name, count, width, exported=True), vectors)

    found = compiled(f"{kind}x{width}", module, *names.values())
    return {vectors: found[name] for vectors, name in names.items()}


def multiply(
    k: Kernel, totals: list[Value], numbers: Sequence[Value], columns: Sequence[Value]
) -> None:
    """Add to the totals, row by row, a number times each of the columns.

    Args:
        k: The kernel.
        totals: The sums, which are replaced.
        numbers: The address of each row's number.
        columns: Vectors.
    """
    for row, address in enumerate(numbers):
        number = k.spread(k.load_number(address))
        for j, column in enumerate(columns):
            at = row * len(columns) + j
            totals[at] = k.multiply_add(number, column, totals[at])


def a_few_at_a_time(
    k: Kernel,
    count: Value,
    most: int,
    starts: Sequence[Value],
    steps: Sequence[Value],
    body: Callable[[Sequence[Value], int], None],
) -> None:
    """Write what is done to ``count`` rows, ``most`` of them at a time, and then to the rest.

    Args:
        k: The kernel.
        count: How many rows there are.
        most: How many the registers hold.
        starts: Addresses that belong to the first row.
        steps: Bytes from each to the next row's.
        body: Writes it for the addresses of some rows, and how many these are.
    """
    with k.loop(k.divided(count, most), carry=starts) as loop:
        body(loop.values, most)
        loop.next = [k.add(v, k.times(n, most)) for v, n in zip(loop.values, steps, strict=True)]
    with k.cases(k.rest(count, most)) as case:
        for few in range(1, most):
            case(few)
            body(loop.out, few)
