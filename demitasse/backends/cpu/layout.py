"""Memory layouts of a shape: C order, channels last, blocks of channels.

Two layouts that put every element in the same place are the same object.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

from demitasse.backends.step import Declined, decline_if

BLOCK = 16
"""Channels of a block: a vector of AVX-512."""

BLOCKS = (BLOCK, 8)

Shape = tuple[int, ...]
Loops = tuple[tuple[int, int, int], ...]


class Arrangement(NamedTuple):
    """Places of the elements of a shape: strides of blocks, and blocks of at most one axis.

    Attributes:
        shape: The logical shape.
        padded: The shape with padding, whole blocks.
        strides: Elements from one block to the next, for each axis.
        blocks: Elements of a block, in the order of the blocks' axes.
        axes: Axes of the blocks.
        first: Place of the first element.
    """

    shape: Shape
    padded: Shape
    strides: Shape
    blocks: Shape = ()
    axes: Shape = ()
    first: int = 0

    @property
    def size(self) -> int:
        """Elements of a buffer, padding included."""
        inner = [1] * len(self.shape)
        for axis, block in zip(self.axes, self.blocks, strict=True):
            inner[axis] = block
        ends = zip(self.padded, inner, self.strides, strict=True)
        return max((n // block * stride for n, block, stride in ends), default=1)

    def block_of(self, axis: int) -> int:
        """Return the size of an axis's blocks; 1 without blocks."""
        return dict(zip(self.axes, self.blocks, strict=True)).get(axis, 1)

    def part(self, shape: Shape, first: Shape) -> Arrangement:
        """Return the arrangement of a part, whose first element has the index ``first``.

        Raises:
            Declined: The part begins or ends within a block.
        """
        place, padded = self.first, []
        for axis, (begin, length) in enumerate(zip(first, shape, strict=True)):
            block, end = self.block_of(axis), begin + length
            cut = begin % block or (length % block and end != self.shape[axis])
            decline_if(cut, f"a part from {first} on; blocks of channels cannot be cut there")
            place += begin // block * self.strides[axis]
            padded.append(-(-length // block) * block)
        return self._replace(shape=shape, padded=tuple(padded), first=place)


class Layout:
    """One arrangement of the float32 elements of a shape.

    Attributes:
        shape: The logical shape.
        arrangement: Places of the elements.
        loops: (axis, count, stride) of all loops over the elements, the outermost stride first.
        size: Elements of a buffer in this layout, padding included.
        plain: Whether it is C order without padding, that of the host side.
    """

    __slots__ = ("arrangement", "loops", "plain", "shape", "size")

    def __init__(self, arrangement: Arrangement, loops: Loops) -> None:
        self.arrangement, self.shape = arrangement, arrangement.shape
        self.size = arrangement.size
        count = math.prod(self.shape)
        c_loops = _loops(Arrangement(self.shape, self.shape, c_order(self.shape)))
        self.plain = arrangement.padded == self.shape and self.size == count and loops == c_loops
        self.loops = loops

    def __repr__(self) -> str:
        return f"Layout({self.shape}, {'plain' if self.plain else self.loops})"


_known: dict[tuple[Any, ...], Layout] = {}


def layout_of(arrangement: Arrangement) -> Layout:
    """Return the layout with an arrangement."""
    loops = _loops(arrangement)
    key = (arrangement.shape, loops, arrangement.padded, arrangement.size)
    found = _known.get(key)
    if found is None:
        found = _known.setdefault(key, Layout(arrangement, loops))
    return found


def c_order(shape: Shape) -> Shape:
    """Return the strides of C order."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


@cache
def plain(shape: Shape) -> Layout:
    """Return the layout in C order."""
    return strided(shape, c_order(shape))


@cache
def strided(shape: Shape, strides: Shape) -> Layout:
    """Return the layout with some strides."""
    return layout_of(Arrangement(shape, shape, strides))


@cache
def innermost(shape: Shape, axis: int) -> Layout:
    """Return the layout in C order but for one axis, whose elements lie side by side."""
    outer = (*shape[:axis], *shape[axis + 1 :], shape[axis])
    strides = [*c_order(outer)[:-1]]
    strides.insert(axis, 1)
    return strided(shape, tuple(strides))


@cache
def blocked(shape: Shape, axis: int, block: int) -> Layout:
    """Return the layout with blocks of an axis innermost and the others in C order.

    The last block is filled up with zeros.
    """
    padded = (*shape[:axis], -(-shape[axis] // block) * block, *shape[axis + 1 :])
    counts = (*padded[:axis], padded[axis] // block, *padded[axis + 1 :])
    strides = tuple(block * stride for stride in c_order(counts))
    return layout_of(Arrangement(shape, padded, strides, (block,), (axis,)))


def channel_blocks(shape: Shape, block: int) -> Layout:
    """Return the layout whose innermost loop is a block of channels."""
    return blocked(shape, 1, block)


def slabs(layout: Layout, size: int) -> list[Layout]:
    """Return the layouts of ranges of the first axis that lie one after the other.

    A range has about ``size`` elements, and a whole number of the layout's blocks.

    Returns:
        Those of the ranges in their order; the layout itself where its ranges lie otherwise. Where
        padding ends the first axis, the last range is a whole block with it.
    """
    if layout.plain or layout.size <= size:
        return [layout]
    arrangement, padded = layout.arrangement, layout.arrangement.padded
    axis, blocks, step = layout.loops[0]
    if axis != 0 or padded[1:] != layout.shape[1:] or blocks * step != layout.size:
        return [layout]
    block, most = padded[0] // blocks, max(1, size // step)
    complete, rest = divmod(layout.shape[0], block)
    counts = [min(most, complete - first) for first in range(0, complete, most)] + [1] * (rest > 0)
    made = {}
    for count in set(counts):
        sizes = (count * block, *layout.shape[1:])
        longer = arrangement._replace(shape=(padded[0], *layout.shape[1:]))
        made[count] = layout_of(longer.part(sizes, (0,) * len(sizes)))
    return [made[count] for count in counts]


def candidates(expected: Layout) -> Iterator[Layout]:
    """Yield layouts of a shape: the expected one, blocks of channels, channels last, C order."""
    shape = expected.shape
    found = [expected]
    found += [channel_blocks(shape, block) for block in BLOCKS if shape[1] % block == 0]
    yield from dict.fromkeys([*found, innermost(shape, 1), plain(shape)])


def in_some_layout(expected: Layout, prepare: Callable[[Layout], None]) -> None:
    """Prepare in the first of the candidates that a kernel takes.

    Raises:
        Declined: There is none.
    """
    for layout in candidates(expected):
        with suppress(Declined):
            prepare(layout)
            return
    message = "sizes for which no kernel takes any layout"
    raise Declined(message)


def _loops(arrangement: Arrangement) -> Loops:
    """Return (axis, count, stride) of all loops over the elements, outermost stride first.

    Loops of one turn are left out and loops that continue each other are joined, so that equal
    arrangements give equal lists.
    """
    outer = list(arrangement.padded)
    inner, stride = [], 1
    blocks = zip(reversed(arrangement.blocks), reversed(arrangement.axes), strict=True)
    for size, axis in blocks:
        inner.append((axis, size, stride))
        stride *= size
        outer[axis] //= size
    loops = [(axis, outer[axis], step) for axis, step in enumerate(arrangement.strides)]
    loops += reversed(inner)
    joined: list[tuple[int, int, int]] = []
    for axis, count, step in sorted(
        (loop for loop in loops if loop[1] > 1), key=lambda loop: -loop[2]
    ):
        last = joined[-1] if joined else None
        if last is not None and last[0] == axis and last[2] == step * count:
            joined[-1] = (axis, last[1] * count, step)
        else:
            joined.append((axis, count, step))
    return tuple(joined)
