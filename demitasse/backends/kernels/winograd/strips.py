"""What kernels over tiles have in common: strips of images, and how threads divide them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np

from demitasse.backends.kernels.axes import Axes
from demitasse.backends.kernels.borders import bordered
from demitasse.backends.kernels.language.kernel import FLOAT, WIDE, Kernel, Value

__all__ = ["BLOCK", "Block", "blocks", "cut", "entries", "image_fields", "image_values", "strips"]

BLOCK = (
    "strips", "block", "lanes", "shared", "down", "right",
    "private", "private_size", "copy", "stacks", "stack_size",
)  # fmt: skip
"""Fields of a kernel over strips: how many there are, how many are worked on at a time; how many
lanes they are divided into, and whether there is but one for all threads (1 or 0); rows and columns
of tiles of an image; where the threads' scratch begins, bytes of each, and bytes to where in it a
strip is copied; where the lanes' stacks begin, and bytes of each."""

IMAGE = ("at", "image", "row", "column", "height", "breadth", "top", "left", "count", "vectors")
"""Fields of a stack of images: its address; elements from one image, row, column to the next; rows
and columns; zeros above and left of it; how many vectors a pixel has, and the address of their
table: for each, elements from the pixel's beginning, and from its tile's."""


def image_fields(name: str) -> tuple[str, ...]:
    """Return the names of the fields of a stack of images."""
    return tuple(f"{name}_{field}" for field in IMAGE)


def image_values(
    name: str, axes: Axes, size: tuple[int, int], pad: tuple[int, int] = (0, 0)
) -> tuple[dict[str, int], np.ndarray]:
    """Return the values of those fields but for the address, and the table, to be kept alive."""
    table = np.array([(offset, channel) for channel, offset in axes.vectors], np.int64)
    values = (axes.image, axes.row, axes.column, *size, *pad, len(table), table.ctypes.data)
    return dict(zip(image_fields(name)[1:], values, strict=True)), table


class Block:
    """Strips that are worked on at a time, as the kernel finds them.

    Attributes:
        first: Number of the first one.
        strips: How many there are.
        tiles: How many tiles.
        lane: Number of the lane.
        again: Whether the lane has had some before, 1 or 0.
        scratch: Address of this thread's scratch.
        stack: Address of the lane's.
    """

    def __init__(self, k: Kernel, f: SimpleNamespace, **values: Value) -> None:
        self._k, self._f = k, f
        self.first, self.strips, self.lane = values["first"], values["strips"], values["lane"]
        self.again, self.thread = values["again"], values["thread"]
        self._part, self._parts = values["part"], values["parts"]
        self.tiles = k.times(self.strips, f.right)
        self.scratch = k.add(f.private, k.times(f.private_size, self.thread))
        self.stack = k.add(f.stacks, k.times(f.stack_size, self.lane))

    def part(self, count: Value) -> tuple[Value, Value]:
        """Return which of so many things are this thread's: from the first to before the last."""
        return self._k.part(count, self._part, self._parts)

    def wait(self) -> None:
        """Wait for the others, where all work on the same block."""
        with self._k.when(self._k.below(0, self._f.shared)):
            self._k.wait()


@contextmanager
def blocks(k: Kernel, f: SimpleNamespace) -> Iterator[Block]:
    """Write what is done to each block of strips, lane by lane."""
    thread, threads = k.thread()
    shared = k.below(0, f.shared)
    ends = k.choose(shared, 1, f.lanes)
    with k.loop(ends, k.choose(shared, 0, thread), k.choose(shared, 1, threads)) as lane:
        first, last = k.part(f.strips, lane.i, ends)
        rounds = k.divided(k.add(k.minus(last, first), f.block, -1), f.block)
        with k.loop(rounds) as turn:
            start = k.add(first, k.times(turn.i, f.block))
            yield Block(
                k, f, first=start, strips=k.least(f.block, k.minus(last, start)), lane=lane.i,
                again=k.least(turn.i, 1), thread=thread,
                part=k.choose(shared, thread, 0), parts=k.choose(shared, threads, 1),
            )  # fmt: skip


@contextmanager
def strips(k: Kernel, f: SimpleNamespace, block: Block) -> Iterator[tuple[Value, Value, Value]]:
    """Write what is done to each strip of this thread's part of a block.

    Yields:
        The image, the row of tiles in it, and the number of its first tile in the block.
    """
    first, last = block.part(block.strips)
    with k.loop(last, first) as strip:
        number = k.add(block.first, strip.i)
        image, row = k.divided(number, f.down), k.rest(number, f.down)
        yield image, row, k.times(strip.i, f.right)


@contextmanager
def entries(k: Kernel, f: SimpleNamespace, name: str) -> Iterator[tuple[Value, Value]]:
    """Write what is done to each vector of a pixel.

    Yields:
        Bytes from where the pixel begins, and from where its tile does.
    """
    with k.loop(getattr(f, f"{name}_count")) as loop:
        entry = k.add(getattr(f, f"{name}_vectors"), k.times(loop.i, 2 * WIDE))
        yield k.bytes(k.load_word(entry)), k.bytes(k.load_word(k.add(entry, WIDE)))


def cut(
    k: Kernel,
    f: SimpleNamespace,
    name: str,
    block: Block,
    transform: Kernel,
    shape: tuple[int, int, int],
    target: tuple[Value, Value, Value],
    scratch: tuple[Value, Value],
) -> None:
    """Write the transform of all tiles of a block's strips.

    Vector by vector, a strip is copied to where its rows lie side by side, with zeros around.

    Args:
        k: The kernel.
        f: Its fields.
        name: Of the images among them.
        block: The block.
        transform: Of one tile.
        shape: Rows of a strip, columns from one tile to the next, columns that tiles overlap.
        target: Address of the first tile's first point, bytes from one tile to the next, and from
            one point to the next.
        scratch: Addresses of the transform's scratch and of the strip's.
    """
    high, step, overlap = shape
    stack, next_tile, next_point = target
    own, copy = scratch
    size = FLOAT * k.width
    at, image_step, row_step, column_step, height, breadth, top, left = (
        getattr(f, f"{name}_{field}") for field in IMAGE[:8]
    )
    wide = k.add(k.times(f.right, step), overlap)
    next_row = k.times(wide, size)
    with strips(k, f, block) as (image, row, tile), entries(k, f, name) as (offset, place):
        source = k.add(at, k.bytes(k.times(image, image_step)), offset)
        first = k.minus(k.times(row, step), top)
        with k.loop(high) as line:
            y = k.add(first, line.i)
            here = k.add(source, k.bytes(k.minus(k.times(y, row_step), k.times(left, column_step))))
            there = k.add(copy, k.times(line.i, next_row))
            zero = (there, k.constant(0.0), size)
            begin, end = bordered(k, y, (height, breadth), left, wide, zero)
            with k.loop(end, begin) as column:
                value = k.load(k.add(here, k.bytes(k.times(column.i, column_step))))
                k.store(value, k.add(there, k.times(column.i, size)))
        with k.loop(f.right) as number:
            k.call(
                transform,
                k.add(copy, k.times(number.i, step * size)),
                next_row,
                size,
                k.add(stack, place, k.times(k.add(tile, number.i), next_tile)),
                next_point,
                own,
            )
