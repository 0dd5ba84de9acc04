"""Matrix products of kernels, by panels of columns."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from demitasse.backends.arrays import address
from demitasse.backends.kernels.language import compiled
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.values import (
    INT,
    Vector,
    Word,
    choose,
    fma,
    pair_fma,
)

ROWS = {4: {1: 16, 2: 12, 3: 8, 4: 6}, 8: {1: 8, 2: 6, 3: 4}, 16: {1: 16, 2: 14, 3: 9}}
"""Floats of a vector -> vectors of a panel -> rows whose sums fit into the registers, with a row of
columns and one number: 16 registers of 8 floats, 32 of 16. Fewer than eight sums would wait for
each other."""

VECTOR_COSTS = {4: {2: 1.0, 1: 1.1}, 8: {2: 1.0, 3: 1.0, 1: 1.25}, 16: {2: 1.0, 1: 1.04}}
"""Floats of a vector -> vectors of a panel -> cost of each, as a multiple of one of two. Of equal
panels, the first is best."""


def panel_vectors(columns: int, width: int) -> int:
    """Return the vectors of all panels: two, or others where these compute less in vain."""
    costs = VECTOR_COSTS[width]
    return min(costs, key=lambda n: math.ceil(columns / (n * width)) * n * costs[n])


def tile_rows(count: int, most: int) -> int:
    """Return the rows of a register tile: many, few of ``count`` in vain.

    A tile's columns are loaded once, which takes as long as another row.
    """
    return min(range(most, 0, -1), key=lambda rows: math.ceil(count / rows) * (rows + 1))


class Rows(NamedTuple):
    """Row counts that a kernel supports.

    Attributes:
        most: Greatest number of rows in registers.
        few: The only number, less than that; 0 for any.
    """

    most: int
    few: int = 0


class Product(NamedTuple):
    """A kernel and its kernels for remainders, the last rows.

    Attributes:
        address: Address of the kernel.
        remainders: Addresses of the remainders' kernels, by number of rows; the address of the
            table is the last argument of each kernel. Without a remainder's kernel, rows are
            computed one at a time, to the same bits.
    """

    address: int
    remainders: np.ndarray

    @property
    def entry(self) -> tuple[int, int]:
        """Both addresses, for a table of products; tables of remainders are never freed."""
        return self.address, address(self.remainders)


Panels = Callable[[int, Iterable[int]], Product]
"""Returns the kernel for panels of a number of vectors and for numbers of rows.

Only the required kernels are compiled: few nets need every panel, and few layers every remainder.
"""


def by_panel(
    kind: str, width: int, count: int, write: Callable[[Kernel, int, Rows], None]
) -> Panels:
    """Return the factory of one kind of kernels.

    Args:
        kind: Prefix of the kernels' names, unique in the process.
        width: Floats of a vector.
        count: Number of arguments; the last is :attr:`Product.remainders`.
        write: Writes one, for so many vectors and such numbers of rows.
    """

    def kernel(vectors: int, few: int = 0) -> int:
        name = f"{kind}_{vectors}x{width}" + (f"of{few}" if few else "")

        def module(of: Any) -> None:
            rows = Rows(ROWS[width][vectors], few)
            write(Kernel(of, name, count, width, exported=True), vectors, rows)

        return compiled(name, module, name)[name]

    def product(vectors: int, counts: Iterable[int]) -> Product:
        most, remainders = ROWS[width][vectors], _remainders(f"{kind}_{vectors}x{width}")
        numbers = set(counts)
        if len(numbers) == 1 and max(numbers) < most:
            return Product(kernel(vectors, numbers.pop()), remainders)
        for rest in {number % most for number in numbers} - {0, 1}:
            remainders[rest] = remainders[rest] or kernel(vectors, rest)
        return Product(kernel(vectors), remainders)

    return product


@cache
def _remainders(name: str) -> np.ndarray:
    """Return the table of a kernel's remainders, which is filled while it may be read."""
    del name
    return np.zeros(max(ROWS[8][1], ROWS[16][1]), np.int64)


def multiply(
    k: Kernel, totals: list[Vector], numbers: Sequence[Word], columns: Sequence[Vector],
    *, bf16: bool = False,
) -> None:  # fmt: skip
    """Add to the totals, row by row, a number times each of the columns.

    Args:
        k: The kernel.
        totals: The sums, which are replaced.
        numbers: The address of each row's number.
        columns: Vectors.
        bf16: Whether numbers and elements of vectors are pairs of bfloat16.
    """
    for row, place_of_number in enumerate(numbers):
        number = k.broadcast(place_of_number)
        for j, column in enumerate(columns):
            place = row * len(columns) + j
            totals[place] = (pair_fma if bf16 else fma)(number, column, totals[place])


LINE_BYTES, LINES = 64, 2
"""Bytes of a cache line; lines that an unrolled step prefetches."""


def product_sums(
    k: Kernel, length: Word, left: Word, rows: Sequence[Word | int], left_bytes: Word | int,
    right: Word, right_bytes: Word | int, vectors: int, unrolled: int,
    words: Sequence[Word] = (), *, bf16: bool = False,
) -> tuple[list[Vector], list[Word]]:  # fmt: skip
    """Return the sums of rows times a panel, row after row: the micro-kernel of products.

    Args:
        k: The kernel.
        length: Number of terms.
        left: Address of the first row's first number.
        rows: Bytes from there to each row.
        left_bytes: Bytes from the numbers of a term to the next.
        right: Address of the panel.
        right_bytes: Bytes from the vectors of a term to the next.
        vectors: Vectors of the panel.
        unrolled: Terms of a step of the innermost loop.
        words: Address from which unrolled steps prefetch, if any; the next is returned.
        bf16: Whether numbers and elements of vectors are pairs of bfloat16.
    """

    def steps(
        sums: list[Vector], words: list[Word], begin: Word, end: Word, count: int
    ) -> tuple[list[Vector], list[Word]]:
        with k.loop(end, begin, right_bytes * count, vectors=sums, words=words) as loop:
            here, *ahead = loop.words
            if count > 1:
                for line in range(LINES * len(ahead)):
                    k.prefetch(ahead[0] + LINE_BYTES * line, cache=2)
                ahead = [one + LINE_BYTES * LINES for one in ahead]
            for step in range(count):
                panel = loop.i + right_bytes * step
                columns = [k.load(panel + k.vector_bytes * j) for j in range(vectors)]
                numbers = [here + row + left_bytes * step for row in rows]
                multiply(k, loop.vectors, numbers, columns, bf16=bf16)
            loop.words = [here + left_bytes * count, *ahead]
        return loop.vectors, loop.words

    sums, following, begin = [k.constant(0.0)] * (len(rows) * vectors), [left, *words], right
    if unrolled > 1:
        begin = right + length // unrolled * (right_bytes * unrolled)
        sums, following = steps(sums, following, right, begin, unrolled)
    sums, following = steps(sums, following, begin, right + length * right_bytes, 1)
    return sums, following[1:]


def product_rows(
    k: Kernel,
    count: Word,
    rows: Rows,
    starts: Sequence[Word],
    row_bytes: Sequence[Word | int],
    body: Callable[[Sequence[Word], int], None],
) -> None:
    """Write a loop over rows for a kernel of :func:`by_panel`; another computes the remainder.

    Args:
        k: The kernel.
        count: Number of rows.
        rows: The rows that the kernel is for.
        starts: Addresses that belong to the first row, which are arguments of the kernel.
        row_bytes: From each of them to the next row's.
        body: Writes it for the addresses of some rows, and how many these are.
    """
    if rows.few:
        body(starts, rows.few)
        return
    behind = _repeated(k, count // rows.most, rows.most, starts, row_bytes, body)
    *others, remainders = k.arguments
    rest = count % rows.most
    kernel = k.load_word(remainders + rest * INT)
    with k.when(kernel > 0):
        moved = dict(zip(starts, behind, strict=True))
        k.call_at(kernel, *(moved.get(one, one) for one in others), remainders)
    _repeated(k, choose(kernel > 0, 0, rest), 1, behind, row_bytes, body)


def _repeated(
    k: Kernel,
    times: Word,
    rows: int,
    starts: Sequence[Word],
    row_bytes: Sequence[Word | int],
    body: Callable[[Sequence[Word], int], None],
) -> Sequence[Word]:
    """Write a loop over groups of ``rows`` rows; return the addresses behind the last group."""
    with k.loop(times, words=starts) as loop:
        body(loop.words, rows)
        loop.words = [
            start + k.word(step) * rows for start, step in zip(loop.words, row_bytes, strict=True)
        ]
    return loop.words


WIDEST = 3
"""Vectors of a panel of columns at most."""


def split_columns(columns: int, width: int) -> list[tuple[int, int]]:
    """Divide columns into panels: vectors of each, and its first column. The last may reach over.

    Panels of one vector are the slowest.
    """
    panels, at = [], 0
    while at < columns:
        left = -(-(columns - at) // width)
        vectors = min(left, 2 if left == 4 else WIDEST)  # 4 is 2 + 2
        panels.append((vectors, at))
        at += vectors * width
    return panels


def fill_panels(panels: np.ndarray, weights: np.ndarray, firsts: Sequence[int]) -> None:
    """Write filters of single pixels, given in C order, by panels, which may share filters.

    Shape of the panels: (panels, channels, filters of a panel).
    """
    _, channels, width = panels.shape
    order = np.add.outer(firsts, np.arange(width))
    by_filter = weights[: (order.max() + 1) * channels].reshape(-1, channels)
    panels[...] = by_filter[order].transpose(0, 2, 1)
