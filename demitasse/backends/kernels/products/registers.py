"""What kernels have in common whose sums stay in registers: rows of them, for panels of columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from demitasse.backends.kernels.language.compiler import compiled
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.words import Vector, Word, fma

__all__ = ["ROWS", "Panels", "a_few_at_a_time", "by_panel", "multiply"]

ROWS = {8: {1: 8, 2: 6, 3: 4}, 16: {1: 16, 2: 14, 3: 9}}
"""Floats of a vector -> vectors of a panel -> rows whose sums fit into the registers, with a row of
columns and one number: 16 registers of 8 floats, 32 of 16. Fewer than eight sums would wait for
each other."""


Panels = Callable[[int], int]
"""Returns the address of the kernel for panels of so many vectors, which is compiled when it is
first asked for: few nets have panels of every number."""


def by_panel(kind: str, width: int, count: int, write: Callable[[Kernel, int], None]) -> Panels:
    """Return what gives the addresses of kernels of one kind.

    Args:
        kind: What they are called; no others of the process are.
        width: Floats of a vector.
        count: How many arguments they have.
        write: Writes one, for so many vectors.
    """

    def address(vectors: int) -> int:
        name = f"{kind}_{vectors}x{width}"

        def module(of: Any) -> None:
            write(Kernel(of, name, count, width, exported=True), vectors)

        return compiled(name, module, name)[name]

    return address


def multiply(
    k: Kernel, totals: list[Vector], numbers: Sequence[Word], columns: Sequence[Vector]
) -> None:
    """Add to the totals, row by row, a number times each of the columns.

    Args:
        k: The kernel.
        totals: The sums, which are replaced.
        numbers: The address of each row's number.
        columns: Vectors.
    """
    for row, address in enumerate(numbers):
        number = k.broadcast(address)
        for j, column in enumerate(columns):
            place = row * len(columns) + j
            totals[place] = fma(number, column, totals[place])


def a_few_at_a_time(
    k: Kernel,
    count: Word,
    most: int,
    starts: Sequence[Word],
    row_bytes: Sequence[Word | int],
    body: Callable[[Sequence[Word], int], None],
) -> None:
    """Write what is done to ``count`` rows, ``most`` of them at a time, and then to the rest.

    Args:
        k: The kernel.
        count: How many rows there are.
        most: How many the registers hold.
        starts: Addresses that belong to the first row.
        row_bytes: From each of them to the next row's.
        body: Writes it for the addresses of some rows, and how many these are.
    """
    with k.loop(count // most, words=starts) as loop:
        body(loop.words, most)
        loop.words = [
            start + k.word(step) * most for start, step in zip(loop.words, row_bytes, strict=True)
        ]
    with k.cases(count % most) as case:
        for few in range(1, most):
            case(few)
            body(loop.words, few)
