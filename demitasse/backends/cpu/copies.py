"""Copies between memory layouts."""

import math
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import product

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.cpu.layout import Layout, paired, stored
from demitasse.backends.kernels.elementwise import Elementwise
from demitasse.backends.kernels.strided_copy import MOST_LOOPS, CopyLoop, StridedCopy, join_loops
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.step import decline_if


class LayoutCopy:
    """A copy of the same elements from one layout to another; padding becomes 0.

    Between layouts of bfloat16, pairs of channels are copied.

    Raises:
        Declined: There are too many loops.
    """

    def __init__(self, source: Layout, target: Layout, tuning: Tuning) -> None:
        if source.bf16 and target.bf16:
            source, target = paired(source), paired(target)
        self._tuning, self._pieces = tuning, list(copy_pieces(source, target))
        self._blocks = source.block, target.block
        self.code = f"copy llvm:{tuning.instructions}"
        most = max((len(join_loops(loops)) for *_, loops in self._pieces), default=0)
        decline_if(most > MOST_LOOPS, f"a copy of more than {MOST_LOOPS} loops")

    @cached_property
    def _kernels(self) -> list[tuple[StridedCopy, int | None, int]]:
        """Kernels of the pieces, with the places that they read and write."""
        kernels = [
            (StridedCopy(loops, self._tuning, self._blocks), read, written)
            for read, written, loops in self._pieces
        ]
        return kernels[:1] if len(kernels) == 2 and kernels[0][0].fills else kernels

    def __call__(self, source: np.ndarray, target: np.ndarray) -> None:
        """Copy between buffers, of which either may begin with another part."""
        source, target = source.reshape(-1), target.reshape(-1)
        for kernel, read, written in self._kernels:
            kernel(_ZERO if read is None else source[read:], target[written:])


_ZERO = np.zeros(1, np.float32)


class ConvertingCopy:
    """A copy between layouts of bfloat16 and float32.

    Raises:
        Declined: There are too many loops.
    """

    def __init__(self, source: Layout, target: Layout, tuning: Tuning) -> None:
        here, there = (stored(end, bf16=False) for end in (source, target))
        self._copies: list[tuple[Callable[[np.ndarray, np.ndarray], None], int]] = []
        if source.bf16:
            self._copies.append((_conversion(here, tuning, widens=True), here.size))
        if here is not there:
            self._copies.append((LayoutCopy(here, there, tuning), there.size))
        if target.bf16:
            self._copies.append((_conversion(there, tuning, widens=False), target.size))

    def __call__(self, source: np.ndarray, target: np.ndarray) -> None:
        """Copy between buffers."""
        *firsts, (last, _) = self._copies
        for copy, size in firsts:
            between = aligned(size)
            copy(source, between)
            source = between
        last(source, target)


def _conversion(layout: Layout, tuning: Tuning, *, widens: bool) -> Elementwise:
    """Return the conversion of all elements from bfloat16, or to it."""
    return Elementwise([("sum", ())], 1, layout.size, tuning, (widens, not widens))


CopyPiece = tuple[int | None, int, list[CopyLoop]]
"""Places of the first elements that are read, None for zeros, and written; nested loops."""


def copy_pieces(source: Layout, target: Layout) -> Iterator[CopyPiece]:
    """Yield the pieces of a copy; those of padding are zeros."""
    ranges = [
        list(_ranges(n, *sorted((source.block_of(axis), target.block_of(axis)))))
        for axis, n in enumerate(source.shape)
    ]
    for parts in product(*ranges):
        begins = [
            side.first + sum(_place(side, axis, begin) for axis, (begin, _) in enumerate(parts))
            for side in (source, target)
        ]
        loops = [
            (n, _place(source, axis, step), _place(target, axis, step))
            for axis, (_, steps) in enumerate(parts)
            for n, step in steps
        ]
        yield begins[0], begins[1], loops
    axis = target.axis
    if target.block > 1 and (lacking := target.padded[axis] - target.shape[axis]):
        others = zip(target.padded, target.strides, strict=True)
        zeros = [(n, 0, stride) for i, (n, stride) in enumerate(others) if i != axis]
        begin = target.first + _place(target, axis, target.shape[axis])
        yield None, begin, [*zeros, (lacking, 0, 1)]


def _ranges(n: int, small: int, large: int) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Yield ranges of ``n`` indices: the first index, and the counts and steps of the loops."""
    if large % small:  # parts that are in one block on either side
        part, both = math.gcd(small, large), math.lcm(small, large)
        end = n // both * both
        yield from ((at, [(end // both, both), (part, 1)]) for at in range(0, min(end, both), part))
        yield from ((at, [(min(part, n - at), 1)]) for at in range(end, n, part))
        return
    begin = n // large * large
    if begin:
        yield 0, [(begin // large, large), (large // small, small), (small, 1)]
    whole = (n - begin) // small
    if whole and small > 1:
        yield begin, [(whole, small), (small, 1)]
        begin += whole * small
    if begin < n:
        yield begin, [(n - begin, 1)]


def _place(side: Layout, axis: int, index: int) -> int:
    """Return the distance of an index of an axis from the first."""
    block = side.block_of(axis)
    return index // block * side.strides[axis] + index % block
