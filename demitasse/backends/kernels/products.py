"""Matrix products of kernels, by panels of columns."""

import math
from collections.abc import Callable, Sequence

from demitasse.backends.kernels.language.kernel import FEWEST_TILES, Kernel
from demitasse.backends.kernels.language.values import (
    LINE_BYTES,
    Condition,
    Vector,
    Word,
    fma,
    minimum,
    pair_fma,
)

ROWS = {4: {1: 16, 2: 12, 3: 8, 4: 6}, 8: {1: 8, 2: 6, 3: 4}, 16: {1: 16, 2: 14, 3: 9}}
"""Floats of a vector -> vectors of a panel -> rows whose sums fit into the registers, with a row of
columns and one number: 16 registers of 8 floats, 32 of 16."""

FEWEST_SUMS = 8
"""Sums of a tile that do not wait for each other."""

VECTOR_COSTS = {4: {2: 1.0, 1: 1.1}, 8: {2: 1.0, 3: 1.0, 1: 1.25}, 16: {2: 1.0, 1: 1.04}}
"""Floats of a vector -> vectors of a panel -> cost of each, as a multiple of one of two. Of equal
panels, the first is best."""


def panel_vectors(columns: int, width: int, *, padded: bool = False) -> int:
    """Return the vectors of a panel: two, or others where these compute less in vain.

    The last panel has fewer vectors, or as many as the others if it is ``padded``.
    """
    costs, needed = VECTOR_COSTS[width], -(-columns // width)

    def cost(vectors: int) -> float:
        whole, rest = divmod(needed, vectors)
        if not rest:
            return whole * vectors * costs[vectors]
        if padded:
            return (whole + 1) * vectors * costs[vectors]
        last = max(rest * costs[rest], FEWEST_SUMS / ROWS[width][vectors])
        return whole * vectors * costs[vectors] + last

    return min((n for n in costs if n <= needed), key=cost)


def tile_rows(count: int, most: int) -> int:
    """Return the rows of a register tile: many, few of ``count`` in vain.

    A tile's columns are loaded once, which takes as long as another row.
    """
    return min(range(most, 0, -1), key=lambda rows: math.ceil(count / rows) * (rows + 1))


def for_each_panel(
    k: Kernel, panels: tuple[Word, Word], whole: Word, counts: Sequence[int],
    write: Callable[[Word, int], None],
) -> None:  # fmt: skip
    """Write a loop over panels, from the first to the one before the end.

    ``write`` takes the number and the columns of each panel. ``counts`` are the columns of a panel
    and, if others, those of the last panel, which comes after ``whole`` panels.
    """
    (begin, end), (most, *last) = panels, counts
    with k.loop(minimum(end, whole) if last else end, begin) as panel:
        write(panel.i, most)
    if last:
        with k.when(end > whole):
            write(whole, *last)


Masks = Sequence[Condition | None]
"""The elements of a panel's vectors that exist; None for all of a vector."""


def column_masks(k: Kernel, columns: int) -> Masks:
    """Return the masks of a panel's vectors."""
    lefts = range(columns, 0, -k.width)
    return [k.lane_mask(left) if left < k.width else None for left in lefts]


def multiply(
    k: Kernel, totals: list[Vector], numbers: Sequence[Word | Vector], columns: Sequence[Vector],
    *, bf16: bool = False,
) -> None:  # fmt: skip
    """Add to the totals, row by row, a number times each of the columns.

    Args:
        k: The kernel.
        totals: The sums, which are replaced.
        numbers: The address of each row's number, or a vector of it.
        columns: Vectors.
        bf16: Whether numbers and elements of vectors are pairs of bfloat16.
    """
    for row, one in enumerate(numbers):
        number = one if isinstance(one, Vector) else k.broadcast(one)
        for j, column in enumerate(columns):
            place = row * len(columns) + j
            totals[place] = (pair_fma if bf16 else fma)(number, column, totals[place])


def product_sums(
    k: Kernel, length: Word, left: Word, rows: Sequence[Word | int], left_bytes: Word | int,
    right: Word, right_bytes: Word | int, vectors: int, unrolled: int,
    words: Sequence[Word] = (), step_bytes: Word | int = 0, lines: int = 0, *, bf16: bool = False,
    half: bool = False,
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
        step_bytes: Bytes from what a step prefetches to the next's.
        lines: Lines that a step prefetches; 0 for as many as ``Kernel.prefetch_step`` needs.
        bf16: Whether numbers and elements of vectors are pairs of bfloat16.
        half: Whether elements of the panel have 16 bits.
    """
    load: Callable[[Word], Vector] = k.load_halves if half else k.load
    vector_bytes = k.vector_bytes // 2 if half else k.vector_bytes

    def steps(
        sums: list[Vector], words: list[Word], begin: Word, end: Word, count: int
    ) -> tuple[list[Vector], list[Word]]:
        with k.loop(end, begin, right_bytes * count, vectors=sums, words=words) as loop:
            here, *ahead = loop.words
            if count > 1:
                even = math.ceil(count * vectors * vector_bytes / (FEWEST_TILES * LINE_BYTES))
                for line in range((lines or even) * len(ahead)):
                    k.prefetch(ahead[0] + LINE_BYTES * line, cache=2)
                ahead = [one + step_bytes for one in ahead]
            for step in range(count):
                panel = loop.i + right_bytes * step
                columns = [load(panel + vector_bytes * j) for j in range(vectors)]
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
