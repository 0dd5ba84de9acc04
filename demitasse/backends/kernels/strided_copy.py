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
"""Nested loops at most; the kernel's code has each."""

FEWEST_EACH = 1 << 15
"""Elements of a thread at least: to meet others takes as long as so many."""

MANY = 8
"""Iterations of a loop for each thread from which on threads divide it about evenly."""

CopyLoop = tuple[int, int, int]
"""Count, and elements from one iteration to the next in the source and in the target."""


class CopyFields(Struct):
    """Nested loops, the outermost first, of which threads divide one."""

    source: Address
    target: Output
    loops: Address
    """For each loop: number of iterations; 1 if threads divide it, otherwise 0; bytes from one
    iteration to the next in source and target."""


class LoopWords(NamedTuple):
    """A thread's iterations of a loop, in a kernel."""

    begin: Word
    end: Word
    source_bytes: Word
    target_bytes: Word

    def addresses(self, index: Word, source: Word, target: Word) -> tuple[Word, Word]:
        """Return the addresses of an iteration's first elements."""
        return source + index * self.source_bytes, target + index * self.target_bytes

    def last(self, index: Word, count: int) -> Word:
        """Return where ``count`` iterations begin, from an index on or the last ones."""
        return maximum(minimum(index, self.end - count), 0)


Kind = Literal["runs", "squares", "joined", "parted", "singles"]
"""Innermost elements: contiguous on both sides; a matrix to transpose, also one of few rows, whose
elements are ``joined`` in the target or ``parted`` in it; or one by one."""

MOST_ROWS = 8
"""Few rows of a matrix at most."""


@CopyFields.kernel("strided_copy")
def _kernel(k: Kernel, f: CopyFields, kind: Kind, count: int, loaded: int, stored: int) -> None:
    """Write the kernel of ``count`` loops; of a matrix of few rows, so many are loaded and stored.

    Missing rows are zeros.
    """
    loops, (index, threads) = [], k.thread()
    for place in range(count):
        iterations, divided, *steps = k.load_words(f.loops + 4 * INT * place, 4)
        own = chunk(iterations, index * divided, (threads - 1) * divided + 1)
        loops.append(LoopWords(*own, *steps))
    inner = 2 if stored or kind == "squares" else 1
    write = _INNER.get(kind, partial(_few_rows, kind == "joined", loaded, stored))

    def nest(depth: int, source: Word, target: Word) -> None:
        if depth == count - inner:
            write(k, loops[depth:], source, target)
            return
        with k.loop(loops[depth].end, loops[depth].begin) as loop:
            nest(depth + 1, *loops[depth].addresses(loop.i, source, target))

    nest(0, f.source, f.target)


def _runs(k: Kernel, loops: Sequence[LoopWords], source: Word, target: Word) -> None:
    [run] = loops
    one, other = run.addresses(run.begin, source, target)

    def body(place: Word, some: Condition | None) -> None:
        k.store(k.load(one + place, some), other + place, some)

    each_vector(k, run.end - run.begin, body)


def _singles(k: Kernel, loops: Sequence[LoopWords], source: Word, target: Word) -> None:
    [row] = loops
    with k.loop(row.end, row.begin) as loop:
        one, other = row.addresses(loop.i, source, target)
        k.store(k.load_float(one), other)


def _squares(k: Kernel, loops: Sequence[LoopWords], source: Word, target: Word) -> None:
    """Transpose squares of vectors; the last rows and columns may be copied twice."""
    rows, columns = loops
    with k.loop(rows.end, rows.begin, k.width) as row:
        ends = rows.addresses(rows.last(row.i, k.width), source, target)
        with k.loop(columns.end, columns.begin, k.width) as column:
            read, written = columns.addresses(columns.last(column.i, k.width), *ends)
            square = [k.load(read + columns.source_bytes * place) for place in range(k.width)]
            for place, vector in enumerate(transposed(square)):
                k.store(vector, written + rows.target_bytes * place)


def _few_rows(
    joins: bool, loaded: int, stored: int, k: Kernel, loops: Sequence[LoopWords], source: Word,
    target: Word,
) -> None:  # fmt: skip
    """Transpose a vector of columns at a time; the last ones may be copied twice."""
    (columns, row), rows = loops, max(loaded, stored)
    table = np.arange(rows * k.width).reshape((rows, k.width) if joins else (k.width, rows))
    order = table.T.reshape(-1).tolist()
    with k.loop(columns.end, columns.begin, k.width) as some:
        read, written = columns.addresses(columns.last(some.i, k.width), source, target)
        one = row.source_bytes if joins else k.vector_bytes
        other = k.vector_bytes if joins else row.target_bytes
        vectors = [k.load(read + one * place) for place in range(loaded)]
        vectors += [k.constant(0.0)] * (rows - loaded)
        for place, vector in enumerate(rearranged(vectors, order)[:stored]):
            k.store(vector, written + other * place)


_INNER = {"runs": _runs, "squares": _squares, "singles": _singles}


class StridedCopy(BoundKernel):
    """Copy of elements to other places, by loops over the elements in any order.

    A call takes source and target, memory that begins with the first element. Their ``blocks`` of
    so many elements may be incomplete; if the copy ``fills`` those of the target, zeros do.
    """

    def __init__(
        self, loops: Sequence[CopyLoop], tuning: Tuning, blocks: tuple[int, int] = (1, 1)
    ) -> None:
        kind, ordered = _ordered(join_loops(loops), tuning.width, blocks)
        threads = threads_for(tuning, math.prod(count for count, _, _ in ordered), FEWEST_EACH)
        divided = _divided(ordered, tuning.width, threads)
        rows = [
            (count, place == divided, FLOAT * one, FLOAT * other)
            for place, (count, one, other) in enumerate(ordered)
        ]
        values = CopyFields.values(loops=np.array(rows, np.int64))
        columns, row = ordered[-2:][0], ordered[-1]
        sizes = {"joined": (row[0], columns[2]), "parted": (columns[1], row[0])}.get(kind, (0, 0))
        self.fills = sizes[0] < sizes[1]
        kernel = _kernel(tuning.width, kind, len(ordered), *sizes)
        super().__init__("copy", kernel, values, tuning, threads)


def _divided(ordered: Sequence[CopyLoop], width: int, threads: int) -> int:
    """Return which loop threads divide: the first of many iterations for each, or the longest."""
    counts = [count for count, *_ in ordered]
    counts[-2:] = [count // width for count in counts[-2:]]  # few rows of a matrix never are many
    enough = (place for place, count in enumerate(counts) if count >= MANY * threads)
    return next(enough, counts.index(max(counts)))


def _ordered(
    loops: list[CopyLoop], width: int, blocks: tuple[int, int]
) -> tuple[Kind, list[CopyLoop]]:
    """Return the kind of the innermost elements, and the loops in the order that it needs."""
    *outer, inner = loops
    if inner[1:] == (1, 1):
        return "runs", loops
    rows = next((one for one in outer if one[1] == 1 and one[0] >= width), None)
    if rows is not None and inner[0] >= width and inner[2] == 1:
        return "squares", [*(one for one in outer if one is not rows), rows, inner]
    sides: dict[Kind, tuple[int, int]] = {"joined": (1, 2), "parted": (2, 1)}
    for (few, columns), (kind, (long, short)) in product(permutations(loops, 2), sides.items()):
        fits = few[0] <= columns[short] <= MOST_ROWS and columns[0] >= width
        fits = fits and columns[short] in (few[0], blocks[short - 1])
        if fits and few[short] == columns[long] == 1:
            return kind, [*(one for one in loops if one not in (few, columns)), columns, few]
    if inner[0] < width:  # such as three of several channels: the pixels are innermost
        inner = max(loops, key=lambda one: (1 in one[1:], one[0]))
    return "singles", [*(one for one in loops if one is not inner), inner]


def join_loops(loops: Sequence[CopyLoop]) -> list[CopyLoop]:
    """Return equivalent loops, the outermost first, with the least steps in the target innermost.

    Loops of one iteration are left out. Loops that continue each other on both sides are one loop.
    """
    ordered = sorted((one for one in loops if one[0] > 1), key=lambda one: (-one[2], -one[1]))
    joined: list[CopyLoop] = []
    for count, source, target in ordered:
        if joined and joined[-1][1:] == (source * count, target * count):
            joined[-1] = joined[-1][0] * count, source, target
        else:
            joined.append((count, source, target))
    return joined or [(1, 0, 0)]
