"""Memory layouts of a shape: C order, channels last, blocks of an axis.

Two layouts that put every element in the same place are the same object.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from functools import lru_cache
from operator import mul
from typing import Any
from weakref import WeakValueDictionary

from demitasse.backends.kernels.strided_copy import join_loops
from demitasse.backends.step import decline_if

Shape = tuple[int, ...]

MOST_KEPT = 2048
"""Most results of a function of layouts that are kept; images may come in any number of sizes."""


class Layout:
    """Places of the elements of a shape: strides of blocks, which divide at most one axis.

    Attributes:
        shape: The logical shape.
        strides: Elements from one block to the next, for each axis.
        axis: Axis of the blocks, whose elements lie side by side.
        block: Elements of a block; 1 without blocks.
        first: Place of the first element.
        bf16: Whether elements are bfloat16, not float32.
        padded: The shape with padding, whole blocks.
        size: Elements of a buffer of float32, padding included.
        plain: Whether it is C order of float32 without padding, that of the host side.
    """

    __slots__ = (
        "__weakref__", "axis", "bf16", "block", "first", "padded", "plain", "shape", "size",
        "strides",
    )  # fmt: skip

    def __init__(
        self, shape: Shape, strides: Shape, axis: int = 0, block: int = 1, *, first: int = 0,
        bf16: bool = False,
    ) -> None:  # fmt: skip
        self.shape, self.axis, self.block, self.first = shape, axis, block, first
        self.bf16 = bf16
        blocks = [-(-n // self.block_of(i)) for i, n in enumerate(shape)]
        self.padded = tuple(n * self.block_of(i) for i, n in enumerate(blocks))
        count = math.prod(self.padded)
        self.strides = _known_strides(blocks, strides, count)
        self.size = max(map(mul, blocks, self.strides), default=1)
        in_order = self.strides == _known_strides(shape, c_order(shape), count)
        self.plain = block == 1 and in_order and first == 0 and not bf16
        if bf16:
            self.size = -(-self.size // 2)

    def block_of(self, axis: int) -> int:
        """Return the size of an axis's blocks; 1 without blocks."""
        return self.block if axis == self.axis else 1

    def part(self, shape: Shape, first: Shape) -> Layout:
        """Return the layout of a part, whose first element has the index ``first``.

        Raises:
            Declined: The part begins or ends within a block.
        """
        place = self.first
        for axis, (begin, length) in enumerate(zip(first, shape, strict=True)):
            block, end = self.block_of(axis), begin + length
            cut = begin % block or (length % block and end != self.shape[axis])
            decline_if(cut, f"a part from {first} on; blocks cannot be cut there")
            place += begin // block * self.strides[axis]
        return Layout(shape, self.strides, self.axis, self.block, first=place, bf16=self.bf16)

    def __repr__(self) -> str:
        places = f"strides {self.strides}, blocks of {self.block} on axis {self.axis}"
        places += ", bfloat16" * self.bf16
        return f"Layout({self.shape}, {'plain' if self.plain else places})"


def _known_strides(counts: Sequence[int], strides: Shape, size: int) -> Shape:
    """Return the strides, with a fixed value for axes of one block, whose strides do not count."""
    return tuple(size if n == 1 else step for n, step in zip(counts, strides, strict=True))


_lock = threading.Lock()
_known: WeakValueDictionary[tuple[Any, ...], Layout] = WeakValueDictionary()


def strided(
    shape: Shape, strides: Shape, axis: int = 0, block: int = 1, *, bf16: bool = False
) -> Layout:
    """Return the layout with some strides, of blocks of an axis if ``block`` is not 1."""
    axis = axis if block > 1 else 0
    made = Layout(shape, strides, axis, block, bf16=bf16)
    with _lock:
        return _known.setdefault((shape, made.strides, axis, block, bf16), made)


def stored(layout: Layout, *, bf16: bool) -> Layout:
    """Return the layout with the same places, of elements in bfloat16 or float32."""
    return strided(layout.shape, layout.strides, layout.axis, layout.block, bf16=bf16)


WHOLE = 16
"""Channels in bfloat16 are a multiple, which fills vectors."""


def rounded(layout: Layout, groups: int = 1) -> Layout:
    """Return the layout in bfloat16, if channels are last and those of a group fill vectors."""
    last = len(layout.shape) > 2 and layout is innermost(layout.shape, 1)
    whole = last and layout.shape[1] % (WHOLE * groups) == 0
    return stored(layout, bf16=True) if whole else layout


def paired(layout: Layout) -> Layout:
    """Return a layout of bfloat16, channels last, as one of float32 with pairs of channels."""
    n, channels, *spatial = layout.shape
    strides = tuple(max(1, stride // 2) for stride in layout.strides)
    return Layout((n, channels // 2, *spatial), strides, first=layout.first // 2)


def c_order(shape: Shape) -> Shape:
    """Return the strides of C order."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


@lru_cache(MOST_KEPT)
def plain(shape: Shape) -> Layout:
    """Return the layout in C order."""
    return strided(shape, c_order(shape))


@lru_cache(MOST_KEPT)
def innermost(shape: Shape, axis: int) -> Layout:
    """Return the layout in C order but for one axis, whose elements lie side by side."""
    outer = (*shape[:axis], *shape[axis + 1 :], shape[axis])
    strides = [*c_order(outer)[:-1]]
    strides.insert(axis, 1)
    return strided(shape, tuple(strides))


@lru_cache(MOST_KEPT)
def blocked(shape: Shape, axis: int, block: int) -> Layout:
    """Return the layout with blocks of an axis innermost and the others in C order.

    The last block is filled up with zeros.
    """
    padded = -(-shape[axis] // block) * block
    if math.prod(shape[axis + 1 :]) == 1:  # blocks that follow each other are one
        block = padded
    if block == shape[axis]:
        return innermost(shape, axis)
    counts = (*shape[:axis], padded // block, *shape[axis + 1 :])
    return strided(shape, tuple(block * stride for stride in c_order(counts)), axis, block)


def viewed(layout: Layout, shape: Shape) -> Layout | None:
    """Return the layout of the same elements in another shape, or None if strides cannot say it."""
    if layout.shape == shape:
        return layout
    if layout.block > 1 or layout.bf16:
        return None
    runs = join_loops([*zip(layout.shape, layout.strides, c_order(layout.shape), strict=True)])
    strides: list[int] = []
    for n, step in zip(shape, c_order(shape), strict=True):
        within = [
            stride * (step // one)
            for count, stride, one in runs
            if n > 1 and step % one == 0 and n * step <= count * one
        ]
        strides += within[:1] if n > 1 else [1]
    return strided(shape, tuple(strides)) if len(strides) == len(shape) else None


def channels_last(shape: Shape, multiple: int) -> Layout:
    """Return the layout with the channels last, filled up with zeros to a multiple."""
    return blocked(shape, 1, -(-shape[1] // multiple) * multiple)


def slabs(layout: Layout, size: int) -> list[Layout]:
    """Return the layouts of ranges of the first axis that lie one after the other.

    A range has about ``size`` elements, and a whole number of the layout's blocks.

    Returns:
        Those of the ranges in their order; the layout itself where its ranges lie otherwise. Where
        padding ends the first axis, the last range is a whole block with it.
    """
    if layout.plain or layout.size <= size:
        return [layout]
    shape, (block, step) = layout.shape, (layout.block_of(0), layout.strides[0])
    complete, rest = divmod(shape[0], block)
    if layout.padded[1:] != shape[1:] or (complete + (rest > 0)) * step != layout.size:
        return [layout]
    most = max(1, size // step)
    counts = [min(most, complete - first) for first in range(0, complete, most)] + [1] * (rest > 0)
    return [
        strided((count * block, *shape[1:]), layout.strides, layout.axis, layout.block)
        for count in counts
    ]


def candidates(expected: Layout) -> tuple[Layout, ...]:
    """Return layouts of a shape: the expected one, channels last, C order."""
    shape = expected.shape
    last = (innermost(shape, 1),) if len(shape) > 1 else ()
    return expected, *last, plain(shape)
