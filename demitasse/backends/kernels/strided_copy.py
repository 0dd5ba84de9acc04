"""Copies between memory layouts: nested loops with a stride on either side."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Arguments, Output, Struct
from demitasse.backends.kernels.language.words import FLOAT, Word, chunk
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
    vectors: Word
    """Whole vectors of the innermost loop; 0 if its elements are not contiguous on both sides."""


@CopyFields.kernel("strided_copy")
def _kernel(k: Kernel, f: CopyFields) -> None:
    loops = (f.first, f.second, f.third, f.fourth, f.fifth, f.sixth)

    def nest(depth: int, source: Word, target: Word, begin: Word | int, end: Word) -> None:
        axis = loops[depth]
        with k.loop(end, begin) as loop:
            one, other = (at + loop.i * step for at, step in (
                (source, axis.source_bytes), (target, axis.target_bytes)))  # fmt: skip
            if depth + 1 < len(loops) - 1:
                nest(depth + 1, one, other, 0, loops[depth + 1].count)
            else:
                with k.loop(f.vectors) as vector:
                    at = vector.i * k.vector_bytes
                    k.store(k.load(one + at), other + at)
                with k.loop(f.sixth.count, f.vectors * k.width) as rest:
                    number = k.load_float(one + rest.i * f.sixth.source_bytes)
                    k.store(number, other + rest.i * f.sixth.target_bytes)

    index, threads = k.thread()
    nest(0, f.source, f.target, *chunk(f.first.count, index, threads))


class StridedCopy(TunedKernel):
    """Copy of elements to other places, by loops over the elements in any order."""

    kernel: ClassVar = "copy"

    def __init__(self, loops: Sequence[CopyLoop], tuning: Tuning) -> None:
        joined = join_loops(loops)
        self.tuning, self._kernel = tuning, _kernel(tuning.width)
        total = int(np.prod([count for count, _, _ in joined]))
        self._threads = max(1, min(tuning.threads, total // FEWEST_EACH))
        *outer, inner = joined
        missing = MOST_LOOPS - len(joined)
        rows = [*outer, *[(1, 0, 0)] * missing, inner]
        names = ("first", "second", "third", "fourth", "fifth", "sixth")
        fields = {
            name: LoopFields.values(count=n, source_bytes=FLOAT * one, target_bytes=FLOAT * other)
            for name, (n, one, other) in zip(names, rows, strict=True)
        }
        contiguous = inner[1:] == (1, 1)
        vectors = inner[0] // tuning.width if contiguous else 0
        self._arguments = Arguments(CopyFields.values(vectors=vectors, **fields))

    def __call__(self, source: np.ndarray, target: np.ndarray) -> None:
        """Copy from and to memory that begins with the first element."""
        each = {"source": source, "target": target}
        self._arguments.run(self._kernel, self._threads, each)


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
