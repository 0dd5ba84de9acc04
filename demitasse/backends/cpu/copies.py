"""Copies between memory layouts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from demitasse.backends.cpu.layout import Arrangement
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.step import decline_if

if TYPE_CHECKING:
    from demitasse.backends.kernels.strided_copy import CopyLoop, StridedCopy


class CopyPiece(NamedTuple):
    """Elements that nested loops copy.

    Attributes:
        source: Place of the first element that is read; None for zeros.
        target: Place of the first element that is written.
        loops: The loops.
    """

    source: int | None
    target: int
    loops: list[CopyLoop]


class LayoutCopy:
    """A copy of the same elements from one arrangement to another; padding becomes 0.

    Raises:
        Declined: There are too many loops, or blocks of several sizes.
    """

    def __init__(self, source: Arrangement, target: Arrangement, tuning: Tuning) -> None:
        self._tuning, self._pieces = tuning, list(copy_pieces(source, target))
        self.code = f"copy llvm:{tuning.instructions}"

    @cached_property
    def _kernels(self) -> list[StridedCopy]:
        from demitasse.backends.kernels.strided_copy import StridedCopy

        return [StridedCopy(piece.loops, self._tuning) for piece in self._pieces]

    def __call__(self, source: np.ndarray, target: np.ndarray) -> None:
        """Copy between buffers, of which either may begin with another part."""
        source, target = source.reshape(-1), target.reshape(-1)
        for kernel, piece in zip(self._kernels, self._pieces, strict=True):
            read = _ZERO if piece.source is None else source[piece.source :]
            kernel(read, target[piece.target :])


_ZERO = np.zeros(1, np.float32)


def copy_pieces(source: Arrangement, target: Arrangement) -> Iterator[CopyPiece]:
    """Yield the pieces of a copy; those of padding are zeros.

    Raises:
        Declined: There are too many loops, or blocks of several sizes.
    """
    axes = range(len(source.shape))
    ranges = [
        list(_ranges(n, 0, *sorted((source.block_of(axis), target.block_of(axis)))))
        for axis, n in enumerate(source.shape)
    ]
    for parts in product(*ranges):
        ends = [
            side.first + sum(_place(side, axis, parts[axis][0]) for axis in axes)
            for side in (source, target)
        ]
        loops = [
            (n, _place(source, axis, step), _place(target, axis, step))
            for axis in axes
            for n, step in parts[axis][1]
        ]
        yield _checked(ends[0], ends[1], loops)
    for axis in target.axes:
        length, padded = target.shape[axis], target.padded[axis]
        if length < padded:
            others = [(target.padded[i], 0, target.strides[i]) for i in axes if i != axis]
            begin = target.first + _place(target, axis, length)
            yield _checked(None, begin, [*others, (padded - length, 0, 1)])


def _ranges(n: int, begin: int, small: int, large: int) -> Iterator[tuple[int, list[Any]]]:
    """Yield ranges of indices: the first index, and the counts and steps of the loops."""
    decline_if(large % small, f"blocks of {small} and of {large}")
    if whole := n // large:
        yield begin, [(whole, large), (large // small, small), (small, 1)]
    begin, n = begin + whole * large, n % large
    if n >= small > 1:
        yield begin, [(n // small, small), (small, 1)]
        begin, n = begin + n // small * small, n % small
    if n:
        yield begin, [(n, 1)]


def _place(side: Arrangement, axis: int, index: int) -> int:
    """Return the distance of an index of an axis from the first."""
    block = side.block_of(axis)
    return index // block * side.strides[axis] + index % block


def _checked(source: int | None, target: int, loops: list[CopyLoop]) -> CopyPiece:
    from demitasse.backends.kernels.strided_copy import MOST_LOOPS, join_loops

    decline_if(len(join_loops(loops)) > MOST_LOOPS, f"a copy of more than {MOST_LOOPS} loops")
    return CopyPiece(source, target, loops)
