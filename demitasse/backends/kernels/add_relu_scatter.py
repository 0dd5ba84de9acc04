"""Gradients that are added up, rectified and handed on, in one pass over memory.

It is what comes of the gradients of a blob with several readers, where a ReLU, and a sum or a
joining of channels, are before it: each element is read once, and written once for each of those
that it is for.
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
"""Gradients that are added up at most, and targets of a sum."""

PIECE = 4096
"""Elements of a row that a thread takes at a time."""

ALONE = 1 << 14
"""Elements up to which one thread ends before other threads would start."""


class Rows(FrozenStruct):
    """Elements in rows: those of one bottom.

    Attributes:
        rows: How many rows there are.
        length: Elements of a row.
        first: Elements before the first row in what is read.
        stride: Elements from one row to the next in what is read.
        target_stride: The same in what is written.
    """

    rows: int
    length: int
    first: int
    stride: int
    target_stride: int

    @classmethod
    def whole(cls, count: int) -> Rows:
        """Return all elements as one row."""
        return cls(1, count, 0, count, count)

    @property
    def are_whole(self) -> bool:
        """True if they are all elements as one row."""
        return self == Rows.whole(self.length)


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
        """Return so many of them."""
        return [self.one, self.two, self.three, self.four][:count]

    @classmethod
    def of_count(cls, count: int) -> Values:
        """Return values whose first ``count`` are arguments of each call; the rest is None."""
        return cls.values(**{name: RUNTIME if i < count else None for i, name in enumerate(NAMES)})

    @classmethod
    def names(cls, of: str, count: int) -> list[str]:
        """Return the names of the first in a struct that has them by a name."""
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
        """Return the first ``count`` of them."""
        return [self.one, self.two, self.three, self.four][:count]

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Values:
        """Return values of which the first are these numbers."""
        return cls.values(**dict.fromkeys(NAMES, 0) | dict(zip(NAMES, numbers, strict=False)))


NAMES = "one", "two", "three", "four"


class ScatterFields(Struct):
    """Gradients, and what they are handed on to."""

    sources: PointerArray
    """The gradients."""
    targets: PointerArray
    """Outputs; an output may be one of the gradients in the same layout."""
    total: OptionalAddress
    """Address of their sum, which lies as what is read does; 0 for none."""
    y: OptionalAddress
    """Address of what the rectifier gave; 0 for none."""
    rows: Word
    """Number of rows."""
    pieces: Word
    """Pieces of a row."""
    length: Word
    """Elements of a row."""
    stride: Word
    """Elements from one row to the next in what is read."""
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
    """Return the sum of gradients, from the first to the last, where the rectifier let it pass."""

    def load(first: Word) -> Vector:
        return k.load(first + at) if some is None else k.masked_load(first + at, some)

    value = load(gradients[0])
    for gradient in gradients[1:]:
        value = value + load(gradient)
    zero = k.constant(0.0)
    return value if y is None else choose(load(y) > zero, value, zero)


class AddReluScatter:
    """The sum of some gradients, 0 where a rectifier gave nothing, in all of its targets.

    Args:
        rows: Where its elements lie.
        sources: How many gradients there are.
        targets: To how many it is handed on.
        tuning: The kernel's vectors and threads.
        relu: Whether there is a rectifier.
        total: Whether the sum itself is written too, as it lies in what is read.
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
            targets: What is written; each lies beside the sources, or is one of them and its
                elements lie alike.
            y: What the rectifier gave, where there is one.
            total: For the sum itself, where that is wanted.
        """
        arrays = [*sources, *targets, *(one for one in (y, total) if one is not None)]
        places = zip(self._names, arrays, self._firsts, strict=True)
        each = {name: array[first:] if first else array for name, array, first in places}
        self._arguments.run(self._kernel, self._threads, each)

    @property
    def code(self) -> str:
        """Name of the code, with the processor's instructions."""
        return f"handed on llvm:{self.tuning.instructions}"
