"""Primitives over buffers that are named anew in every run: products, moves, transforms.

Buffers go by their addresses. There are many small primitives, and a slice of an array for each
argument of each would take as long as some of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from demitasse.backends.onednn.constants import Arg
from demitasse.backends.onednn.engine import Description, Engine, Missing, Primitive, address
from demitasse.backends.onednn.layout import aligned

__all__ = ["FLOAT", "Move", "Piece", "Transform", "View", "moves", "pitch", "product"]

FLOAT = 4
"""Bytes of a number."""

PAGE, SHIFT = 1024, 176
"""Elements of 4 KiB, and by how many the rows of a stack are apart more than a multiple of that."""


def pitch(count: int) -> int:
    """Return how far apart rows of ``count`` elements begin, where many are read at once.

    Addresses that differ by a multiple of 4 KiB compete for the same few lines of a first-level
    cache; a dozen rows would drive each other out.
    """
    return count + (SHIFT - count) % PAGE


class View(NamedTuple):
    """A part of a buffer as an array.

    Attributes:
        shape: Sizes of its axes.
        strides: Elements from one to the next along each axis.
        offset: Where it begins in the buffer.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @classmethod
    def rows(cls, *shape: int) -> View:
        """Return the whole of a buffer in C order."""
        return cls(shape, tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape))))

    def at(self, index: int) -> View:
        """Return the part at an index of the first axis."""
        return View(self.shape[1:], self.strides[1:], self.offset + index * self.strides[0])


class Piece:
    """A primitive and the places in its buffers that it works on.

    Args:
        engine: The engine.
        description: What to make.
        uses: Role, descriptor and offset of every argument, in the order of the buffers.
    """

    __slots__ = ("offsets", "primitive")

    def __init__(
        self, engine: Engine, description: Description | None, uses: Sequence[tuple[int, int, int]]
    ) -> None:
        if description is None:
            raise Missing
        pairs = [(role, descriptor) for role, descriptor, _ in uses]
        self.primitive = Primitive(engine, description, pairs)
        self.offsets = tuple(FLOAT * offset for _, _, offset in uses)

    def __call__(self, *addresses: int) -> None:
        """Run over the buffers that begin at these addresses."""
        primitive = self.primitive
        for place, offset in enumerate(self.offsets):
            primitive.point(place, addresses[place] + offset)
        primitive.run()


class Move(Piece):
    """target = source, from one arrangement to another."""

    __slots__ = ()

    def __init__(self, engine: Engine, source: View, target: View) -> None:
        here = engine.strided(source.shape, source.strides)
        there = engine.strided(target.shape, target.strides)
        uses = [(Arg.SRC, here, source.offset), (Arg.DST, there, target.offset)]
        super().__init__(engine, engine.describe_reorder(here, there), uses)


def moves(engine: Engine, pairs: Iterable[tuple[View, View]]) -> list[Move]:
    """Return what copies the first arrangement of each pair to the second.

    That is one primitive, or one for each index of the first axis where the library has only its
    slow code for many short axes.
    """
    found: list[Move] = []
    for source, target in pairs:
        whole = Move(engine, source, target)
        if whole.primitive.implementation.startswith("jit") or len(source.shape) == 1:
            found.append(whole)
        else:
            count = range(source.shape[0])
            found += moves(engine, ((source.at(i), target.at(i)) for i in count))
    return found


def product(
    engine: Engine,
    views: tuple[View, View, View],
    *,
    bias: View | None = None,
    attributes: int | None = None,
) -> Piece:
    """Return target = left @ right (+ bias), for stacks of matrices.

    Args:
        engine: The engine.
        views: Of left, right and target.
        bias: Of an offset for each column.
        attributes: What happens to the product; by default it overwrites the target.

    Raises:
        Missing: The library has no good primitive.
    """
    a, b, c = (engine.strided(view.shape, view.strides) for view in views)
    row = engine.strided(bias.shape, bias.strides) if bias else None
    chosen = engine.attributes if attributes is None else attributes
    found = engine.describe("dnnl_matmul", engine.handle, a, b, row, c, chosen)
    left, right, target = views
    uses = [(Arg.SRC, a, left.offset), (Arg.WEIGHTS, b, right.offset)]
    if bias and row:
        uses.append((Arg.BIAS, row, bias.offset))
    return Piece(engine, found, [*uses, (Arg.DST, c, target.offset)])


class Transform:
    """out[r, s] = sum over i, j of matrix[r, i] * matrix[s, j] * in[i, j], for rows of numbers.

    Args:
        engine: The engine.
        matrix: Shape (R, K).
        count: Length of the rows, a ``pitch``; in is (K, K, count), out is (R, R, count).
        lanes: How many of them there are, each transformed by itself, and how many elements are
            from one to the next in all buffers.
        parts: How many ins there are, one after the other, whose sum is transformed.
        relu: Whether what is negative becomes 0.

    Raises:
        Missing: The library has no good primitive.
    """

    def __init__(
        self,
        engine: Engine,
        matrix: np.ndarray,
        count: int,
        lanes: tuple[int, int] = (1, 0),
        *,
        parts: int = 1,
        relu: bool = False,
    ) -> None:
        high, wide = matrix.shape
        row, deep = wide * count, parts * wide
        number, stride = lanes[0], lanes[1] or deep * row
        self.matrices = [_constant(np.tile(matrix, parts)), _constant(matrix)]
        self.at = [address(array) for array in self.matrices]
        self.down = product(
            engine,
            (
                View.rows(1, high, deep),
                View((number, deep, row), (stride, row, 1)),
                View((number, high, row), (stride, row, 1)),
            ),
        )
        self.across = product(
            engine,
            (
                View.rows(1, 1, high, wide),
                View((number, high, wide, count), (stride, row, count, 1)),
                View((number, high, high, count), (stride, high * count, count, 1)),
            ),
            attributes=engine.attributes_with_relu if relu else None,
        )

    @property
    def pieces(self) -> list[Piece]:
        """What it runs."""
        return [self.down, self.across]

    def __call__(self, source: int, middle: int, target: int) -> None:
        """Transform ``source`` to ``target``; ``middle`` is scratch of (R, K, count)."""
        self.down(self.at[0], source, middle)
        self.across(self.at[1], middle, target)


def _constant(matrix: np.ndarray) -> np.ndarray:
    """Return a copy that begins where the library likes it. Shape: (matrix.size,)."""
    copy = aligned(matrix.size)
    copy[...] = matrix.reshape(-1)
    return copy
