"""Sum of gradients, ReLU's backward, and scatter to several targets, in one pass over memory.

The gradients of a blob's readers are summed (Split), masked (ReLU), and copied to the inputs of an
Eltwise or Concat. Each element is read once, and written once per target.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from demitasse.backends.kernels.language import compiled
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import (
    RUNTIME,
    Arguments,
    OptionalAddress,
    Struct,
    Values,
)
from demitasse.backends.kernels.language.words import (
    FLOAT,
    Condition,
    Vector,
    Word,
    choose,
    chunk,
    minimum,
)
from demitasse.backends.kernels.tuning import Tuning
from demitasse.core.frozen_struct import FrozenStruct

__all__ = ["MOST", "AddReluScatter", "PointerArray", "Rows"]

MOST = 4
"""Greatest number of summed gradients, and of targets."""

PIECE = 4096
"""Elements of a row per work item."""

ALONE = 1 << 14
"""Elements up to which one thread ends before other threads would start."""


class Rows(FrozenStruct):
    """Elements of one bottom, in rows.

    Attributes:
        rows: Number of rows.
        length: Elements of a row.
        first: Elements before the first row in what is read.
        stride: Elements from one row of the sources to the next.
        target_stride: The same in what is written.
    """

    rows: int
    length: int
    first: int
    stride: int
    target_stride: int

    @classmethod
    def all_of(cls, count: int) -> Rows:
        """Return all elements as one row."""
        return cls(1, count, 0, count, count)

    @property
    def are_whole(self) -> bool:
        """True if one row has all elements."""
        return self == Rows.all_of(self.length)


class PointerArray(Struct):
    """Addresses of first elements; 0 for none."""

    one: OptionalAddress
    """The first."""
    two: OptionalAddress
    """The second."""
    three: OptionalAddress
    """The third."""
    four: OptionalAddress
    """The fourth."""

    def some(self, count: int) -> Sequence[Word]:
        """Return the first ``count`` addresses."""
        return [self.one, self.two, self.three, self.four][:count]

    @classmethod
    def of_count(cls, count: int) -> Values:
        """Return values whose first ``count`` are arguments of each call; the rest is None."""
        return cls.values(**{name: RUNTIME if i < count else None for i, name in enumerate(NAMES)})

    @classmethod
    def names(cls, of: str, count: int) -> list[str]:
        """Return the first ``count`` names in a struct whose field ``of`` is an array."""
        return [f"{of}.{name}" for name in NAMES[:count]]


class Numbers(Struct):
    """Integers that belong to :class:`PointerArray`; 0 for none."""

    one: Word
    """The first."""
    two: Word
    """The second."""
    three: Word
    """The third."""
    four: Word
    """The fourth."""

    def some(self, count: int) -> list[Word]:
        """Return the first ``count`` integers."""
        return [self.one, self.two, self.three, self.four][:count]

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Values:
        """Return values that begin with these numbers."""
        return cls.values(**dict.fromkeys(NAMES, 0) | dict(zip(NAMES, numbers, strict=False)))


NAMES = "one", "two", "three", "four"


class ScatterFields(Struct):
    """Gradients and their targets."""

    sources: PointerArray
    """The gradients."""
    targets: PointerArray
    """Outputs; an output may be one of the gradients in the same layout."""
    total: OptionalAddress
    """Address of the sum, in the sources' layout; 0 for none."""
    y: OptionalAddress
    """Address of ReLU's output; 0 for none."""
    rows: Word
    """Number of rows."""
    pieces: Word
    """Pieces of a row."""
    length: Word
    """Elements of a row."""
    stride: Word
    """Elements from one row of the sources to the next."""
    target_stride: Word
    """The same in what is written."""


@cache
def _kernel(width: int, sources: int, targets: int, *, relu: bool, total: bool) -> int:
    """Return the address of the kernel."""
    options = f"{'_relu' if relu else ''}{'_total' if total else ''}"
    name = f"handing{width}_{sources}_{targets}{options}"
    write = partial(
        _write, name=name, width=width, sources=sources, targets=targets, relu=relu, total=total
    )
    return compiled(name, write, name)[name]


def _write(
    module: Any, name: str, width: int, sources: int, targets: int, *, relu: bool, total: bool
) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    f = ScatterFields.read(k)
    begin, end = chunk(f.rows * f.pieces, *k.thread())
    with k.loop(end, begin) as loop:
        row, piece = loop.i // f.pieces, loop.i % f.pieces
        start = piece * PIECE
        count = minimum(f.length - start, PIECE)
        here, there = ((row * stride + start) * FLOAT for stride in (f.stride, f.target_stride))
        gradients = [at + here for at in f.sources.some(sources)]
        places = [at + there for at in f.targets.some(targets)]
        places += [f.total + here] if total else []
        y = f.y + here if relu else None
        whole = (count - count % width) * FLOAT
        with k.loop(whole, 0, k.vector_bytes) as at:
            value = _summed(k, gradients, y, at.i, None)
            for place in places:
                k.store(value, place + at.i)
        with k.when(count % width > 0):
            some = k.lane_mask(count % width)
            value = _summed(k, gradients, y, whole, some)
            for place in places:
                k.masked_store(value, place + whole, some)
    k.done()


def _summed(
    k: Kernel, gradients: list[Word], y: Word | None, at: Word, some: Condition | None
) -> Vector:
    """Return the sum of gradients, from first to last, masked by ReLU's output."""

    def load(first: Word) -> Vector:
        return k.load(first + at) if some is None else k.masked_load(first + at, some)

    value = load(gradients[0])
    for gradient in gradients[1:]:
        value = value + load(gradient)
    zero = k.constant(0.0)
    return value if y is None else choose(load(y) > zero, value, zero)


class AddReluScatter:
    """Sum of gradients, 0 where ReLU's output is 0, written to all targets.

    Args:
        rows: Layout of the elements.
        sources: Number of gradients.
        targets: Number of targets.
        tuning: The kernel's vectors and threads.
        relu: True to mask with ReLU's output.
        total: True to write the sum, too, in the sources' layout.
    """

    def __init__(
        self, rows: Rows, sources: int, targets: int, tuning: Tuning, *, relu: bool, total: bool
    ) -> None:
        self.rows, self.tuning = rows, tuning
        self._kernel = _kernel(tuning.width, sources, targets, relu=relu, total=total)
        self._names = PointerArray.names("sources", sources) + PointerArray.names(
            "targets", targets
        )
        self._names += ["y"] * relu + ["total"] * total
        self._firsts = [rows.first] * sources + [0] * targets
        self._firsts += [rows.first] * (relu + total)
        self._threads = tuning.threads if rows.rows * rows.length > ALONE else 1
        self._arguments = Arguments(
            ScatterFields.values(
                sources=PointerArray.of_count(sources),
                targets=PointerArray.of_count(targets),
                total=RUNTIME if total else None,
                y=RUNTIME if relu else None,
                rows=rows.rows,
                pieces=-(-rows.length // PIECE),
                length=rows.length,
                stride=rows.stride,
                target_stride=rows.target_stride,
            )
        )

    def __call__(
        self,
        sources: Sequence[np.ndarray],
        targets: Sequence[np.ndarray],
        y: np.ndarray | None = None,
        total: np.ndarray | None = None,
    ) -> None:
        """Write the targets.

        Args:
            sources: The gradients.
            targets: Outputs; a target does not overlap the sources, or is a source in the same
                layout.
            y: ReLU's output, if there is a ReLU.
            total: Output for the sum; None for none.
        """
        arrays = [*sources, *targets, *(one for one in (y, total) if one is not None)]
        places = zip(self._names, arrays, self._firsts, strict=True)
        each = {name: array[first:] if first else array for name, array, first in places}
        self._arguments.run(self._kernel, self._threads, each)

    @property
    def code(self) -> str:
        """Name of the code, with the processor's instructions."""
        return f"handed on llvm:{self.tuning.instructions}"
