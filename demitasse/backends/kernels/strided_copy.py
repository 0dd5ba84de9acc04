"""Copies between memory layouts: nested loops with a stride on either side."""

import math
from collections.abc import Sequence
from functools import partial
from itertools import permutations, product
from typing import Literal, NamedTuple

import numpy as np

from demitasse.backends.kernels.bound import BoundKernel, each_vector, threads_for
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Output, Struct
from demitasse.backends.kernels.language.values import (
    FLOAT,
    INT,
    Condition,
    Word,
    chunk,
    maximum,
    minimum,
    rearranged,
    transposed,
)
from demitasse.backends.kernels.tuning import Tuning

MOST_LOOPS = 6

FEWEST_EACH = 1 << 15
"""Elements of a thread at least: to meet others takes as long as so many."""

CopyLoop = tuple[int, int, int]
"""Count, and elements from one iteration to the next in the source and in the target."""


class CopyFields(Struct):
    """Nested loops, the outermost first, which threads divide."""

    source: Address
    target: Output
    loops: Address
    """Number of iterations, and bytes from one to the next in source and target, of each loop."""


class LoopWords(NamedTuple):
    """A loop in a kernel."""

    turns: Word
    source_bytes: Word
    target_bytes: Word

    def places(self, index: Word, source: Word, target: Word) -> tuple[Word, Word]:
        """Return the addresses of an iteration's first elements."""
        return source + index * self.source_bytes, target + index * self.target_bytes


Kind = Literal["runs", "squares", "joined", "parted", "singles"]
"""Innermost elements: contiguous on both sides; a matrix to transpose, also one of few rows, whose
elements are ``joined`` in the target or ``parted`` in it; or one by one."""

MOST_ROWS = 8
"""Few rows of a matrix at most."""


@CopyFields.kernel("strided_copy")
def _kernel(k: Kernel, f: CopyFields, kind: Kind, count: int, rows: int) -> None:
    """Write the kernel of ``count`` loops; ``rows`` are those of a matrix of few, or 0."""
    loops = [LoopWords(*k.load_words(f.loops + 3 * INT * place, 3)) for place in range(count)]
    inner = 2 if rows or kind == "squares" else 1
    write = partial(_few_rows, rows=rows, joins=kind == "joined") if rows else _INNER[kind]

    def nest(depth: int, source: Word, target: Word, begin: Word, end: Word) -> None:
        if depth == count - inner:
            write(k, loops[depth:], source, target, begin, end)
            return
        with k.loop(end, begin) as loop:
            ends = loops[depth].places(loop.i, source, target)
            nest(depth + 1, *ends, k.word(0), loops[depth + 1].turns)

    index, threads = k.thread()
    nest(0, f.source, f.target, *chunk(loops[0].turns, index, threads))


def _runs(
    k: Kernel, loops: Sequence[LoopWords], source: Word, target: Word, begin: Word, end: Word
) -> None:
    one, other = loops[0].places(begin, source, target)

    def body(place: Word, some: Condition | None) -> None:
        k.store(k.load(one + place, some), other + place, some)

    each_vector(k, end - begin, body)


def _singles(
    k: Kernel, loops: Sequence[LoopWords], source: Word, target: Word, begin: Word, end: Word
) -> None:
    with k.loop(end, begin) as loop:
        one, other = loops[0].places(loop.i, source, target)
        k.store(k.load_float(one), other)


def _squares(
    k: Kernel, loops: Sequence[LoopWords], source: Word, target: Word, begin: Word, end: Word
) -> None:
    """Transpose squares of vectors; the last rows and columns may be copied twice."""
    rows, columns = loops
    with k.loop(end, begin, k.width) as row:
        ends = rows.places(maximum(minimum(row.i, end - k.width), 0), source, target)
        with k.loop(columns.turns, 0, k.width) as column:
            first = minimum(column.i, columns.turns - k.width)
            read, written = columns.places(first, *ends)
            square = [k.load(read + columns.source_bytes * place) for place in range(k.width)]
            for place, vector in enumerate(transposed(square)):
                k.store(vector, written + rows.target_bytes * place)


def _few_rows(
    k: Kernel, loops: Sequence[LoopWords], source: Word, target: Word, begin: Word, end: Word,
    *, rows: int, joins: bool,
) -> None:  # fmt: skip
    """Transpose a vector of columns at a time; the last ones may be copied twice."""
    columns, row = loops
    table = np.arange(rows * k.width).reshape((rows, k.width) if joins else (k.width, rows))
    order = table.T.reshape(-1).tolist()
    with k.loop(end, begin, k.width) as some:
        read, written = columns.places(maximum(minimum(some.i, end - k.width), 0), source, target)
        one = row.source_bytes if joins else k.vector_bytes
        other = k.vector_bytes if joins else row.target_bytes
        vectors = [k.load(read + one * place) for place in range(rows)]
        for place, vector in enumerate(rearranged(vectors, order)):
            k.store(vector, written + other * place)


_INNER = {"runs": _runs, "squares": _squares, "singles": _singles}


class StridedCopy(BoundKernel):
    """Copy of elements to other places, by loops over the elements in any order.

    A call takes source and target, memory that begins with the first element.
    """

    def __init__(self, loops: Sequence[CopyLoop], tuning: Tuning) -> None:
        kind, ordered = _ordered(join_loops(loops), tuning.width)
        threads = threads_for(tuning, math.prod(count for count, _, _ in ordered), FEWEST_EACH)
        rows = [(count, FLOAT * one, FLOAT * other) for count, one, other in ordered]
        values = CopyFields.values(loops=np.array(rows, np.int64))
        few = ordered[-1][0] if kind in ("joined", "parted") else 0
        kernel = _kernel(tuning.width, kind, len(ordered), few)
        super().__init__("copy", kernel, values, tuning, threads)


def _ordered(loops: list[CopyLoop], width: int) -> tuple[Kind, list[CopyLoop]]:
    """Return the kind of the innermost elements, and the loops in the order that it needs."""
    *outer, inner = loops
    if inner[1:] == (1, 1):
        return "runs", loops
    rows = next((one for one in outer if one[1] == 1 and one[0] >= width), None)
    if rows is not None and inner[0] >= width and inner[2] == 1:
        return "squares", [*(one for one in outer if one is not rows), rows, inner]
    sides: dict[Kind, tuple[int, int]] = {"joined": (1, 2), "parted": (2, 1)}
    for (few, columns), (kind, (long, short)) in product(permutations(loops, 2), sides.items()):
        fits = few[0] <= MOST_ROWS and columns[0] >= width
        if fits and few[short] == columns[long] == 1 and columns[short] == few[0]:
            return kind, [*(one for one in loops if one not in (few, columns)), columns, few]
    if inner[0] < width:  # such as three of several channels: the pixels are innermost
        inner = max(loops, key=lambda one: (1 in one[1:], one[0]))
    return "singles", [*(one for one in loops if one is not inner), inner]


def join_loops(loops: Sequence[CopyLoop]) -> list[CopyLoop]:
    """Return equivalent loops, the outermost first, with the least steps in the target innermost.

    Loops of one turn are left out. Loops that continue each other on both sides are one loop.
    """
    ordered = sorted((one for one in loops if one[0] > 1), key=lambda one: (-one[2], -one[1]))
    joined: list[CopyLoop] = []
    for count, source, target in ordered:
        if joined and joined[-1][1:] == (source * count, target * count):
            joined[-1] = joined[-1][0] * count, source, target
        else:
            joined.append((count, source, target))
    return joined or [(1, 0, 0)]
