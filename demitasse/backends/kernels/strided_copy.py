"""Copies between memory layouts: nested loops with a stride on either side."""

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np

from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Arguments, Output, Struct
from demitasse.backends.kernels.language.words import FLOAT, Word, choose, chunk, transposed
from demitasse.backends.kernels.tuning import TunedKernel, Tuning

MOST_LOOPS = 6

FEWEST_EACH = 1 << 15
"""Elements of a thread at least: to meet others takes as long as so many."""

CopyLoop = tuple[int, int, int]
"""Count, and elements from one iteration to the next in the source and in the target."""


class LoopFields(Struct):
    """Number of iterations of a loop, and bytes from one iteration to the next."""

    count: Word
    source_bytes: Word
    target_bytes: Word


class CopyFields(Struct):
    """Nested loops, the outermost first, which threads divide."""

    source: Address
    target: Output
    first: LoopFields
    second: LoopFields
    third: LoopFields
    fourth: LoopFields
    fifth: LoopFields
    sixth: LoopFields


Kind = Literal["runs", "squares", "singles"]
"""Innermost elements: contiguous on both sides; a matrix to transpose; or one by one."""


@CopyFields.kernel("strided_copy")
def _kernel(k: Kernel, f: CopyFields, kind: Kind, count: int) -> None:
    """Write the kernel of ``count`` loops."""
    loops = (f.first, f.second, f.third, f.fourth, f.fifth, f.sixth)[:count]
    inner = 2 if kind == "squares" else 1

    def nest(depth: int, source: Word, target: Word, begin: Word, end: Word) -> None:
        if depth == count - inner:
            _INNER[kind](k, loops[depth:], source, target, begin, end)
            return
        with k.loop(end, begin) as loop:
            one, other = _places(loops[depth], loop.i, source, target)
            nest(depth + 1, one, other, k.word(0), loops[depth + 1].count)

    index, threads = k.thread()
    nest(0, f.source, f.target, *chunk(f.first.count, index, threads))


def _places(axis: LoopFields, index: Word, source: Word, target: Word) -> tuple[Word, Word]:
    """Return the addresses of an iteration's first elements."""
    return source + index * axis.source_bytes, target + index * axis.target_bytes


def _runs(
    k: Kernel, loops: Sequence[LoopFields], source: Word, target: Word, begin: Word, end: Word
) -> None:
    whole = begin + (end - begin) // k.width * k.width
    with k.loop(whole, begin, k.width) as loop:
        one, other = _places(loops[0], loop.i, source, target)
        k.store(k.load(one), other)
    with k.when(whole < end):
        one, other = _places(loops[0], whole, source, target)
        some = k.lane_mask(end - whole)
        k.masked_store(k.masked_load(one, some), other, some)


def _singles(
    k: Kernel, loops: Sequence[LoopFields], source: Word, target: Word, begin: Word, end: Word
) -> None:
    with k.loop(end, begin) as loop:
        one, other = _places(loops[0], loop.i, source, target)
        k.store(k.load_float(one), other)


def _squares(
    k: Kernel, loops: Sequence[LoopFields], source: Word, target: Word, begin: Word, end: Word
) -> None:
    """Transpose squares of vectors; copy the last rows and columns one by one."""
    rows, columns = loops
    whole = begin + (end - begin) // k.width * k.width
    full = columns.count // k.width * k.width
    with k.loop(whole, begin, k.width) as row:
        one, other = _places(rows, row.i, source, target)
        with k.loop(full, 0, k.width) as column:
            read, written = _places(columns, column.i, one, other)
            square = [k.load(read + columns.source_bytes * place) for place in range(k.width)]
            for place, vector in enumerate(transposed(square)):
                k.store(vector, written + rows.target_bytes * place)
    with k.loop(end, begin) as row:
        one, other = _places(rows, row.i, source, target)
        _singles(k, [columns], one, other, choose(row.i < whole, full, 0), columns.count)


_INNER = {"runs": _runs, "squares": _squares, "singles": _singles}


class StridedCopy(TunedKernel):
    """Copy of elements to other places, by loops over the elements in any order."""

    kernel: ClassVar = "copy"

    def __init__(self, loops: Sequence[CopyLoop], tuning: Tuning) -> None:
        kind, ordered = _ordered(join_loops(loops), tuning.width)
        self.tuning, self._kernel = tuning, _kernel(tuning.width, kind, len(ordered))
        total = math.prod(count for count, _, _ in ordered)
        self._threads = max(1, min(tuning.threads, total // FEWEST_EACH))
        rows = [*ordered, *[(1, 0, 0)] * (MOST_LOOPS - len(ordered))]
        names = ("first", "second", "third", "fourth", "fifth", "sixth")
        fields = {
            name: LoopFields.values(count=n, source_bytes=FLOAT * one, target_bytes=FLOAT * other)
            for name, (n, one, other) in zip(names, rows, strict=True)
        }
        self._arguments = Arguments(CopyFields.values(**fields))

    def __call__(self, source: np.ndarray, target: np.ndarray) -> None:
        """Copy from and to memory that begins with the first element."""
        each = {"source": source, "target": target}
        self._arguments.run(self._kernel, self._threads, each)


def _ordered(loops: list[CopyLoop], width: int) -> tuple[Kind, list[CopyLoop]]:
    """Return the kind of the innermost elements, and the loops in the order that it needs."""
    *outer, inner = loops
    if inner[1:] == (1, 1):
        return "runs", loops
    rows = next((one for one in outer if one[1] == 1 and one[0] >= width), None)
    if rows is not None and inner[0] >= width and inner[2] == 1:
        return "squares", [*(one for one in outer if one is not rows), rows, inner]
    if inner[0] < width:  # such as three channels: the pixels are innermost
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
