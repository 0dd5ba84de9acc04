"""Arguments of kernels, in the layout that each needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.layout import Layout, plain, rounded, stored
from demitasse.backends.kernels.language import call_recorder
from demitasse.backends.step import Layouts, LayoutUse, Memory, Operand


class Argument(ABC):
    """An argument of a kernel.

    Attributes:
        engine: Set by the call.
    """

    __slots__ = ("engine", "layout", "plain")

    engine: Engine

    def __init__(self, layout: Layout) -> None:
        self.layout, self.plain = layout, layout.plain

    @abstractmethod
    def array(self) -> np.ndarray:
        """Return the memory in the kernel's layout. Shape: (layout.size,)."""

    @property
    def copied(self) -> int:
        """Bytes of a kept copy in another layout."""
        return 0

    @property
    def layout_use(self) -> LayoutUse | None:
        """Layout in which the argument uses a blob, for Steps that are prepared later."""
        return None


class Derived:
    """A result computed from arguments, and computed again after each change of an argument.

    A recording that reuses the array requires unchanged sources at each replay.

    Attributes:
        make: Computes the result; takes the arrays of all sources.

    Args:
        sources: The arguments.
    """

    def __init__(self, make: Callable[..., None], *sources: BlobArg | DerivedArg) -> None:
        self.make, self._sources = make, sources
        self._made_from: Hashable = None

    @property
    def version(self) -> tuple[tuple[int, int], ...]:
        """Changes whenever a source may have changed."""
        return tuple([pair for source in self._sources for pair in source.version])

    def follow(self, *target: np.ndarray) -> None:
        """Compute the result, perhaps in ``target``, unless no source has changed since."""
        version = self.version
        if version != self._made_from:
            self._made_from = None  # until the result is complete
            self.make(*target, *[source.array() for source in self._sources])
            self._made_from = version
        else:
            call_recorder.reuse(version)


class DerivedArg(Derived, Argument):
    """An argument computed from other arguments: a copy in another layout, packed filters.

    While every read follows a change, as for parameters in training, it is in scratch memory of
    the call. After two reads without a change in between, it gets its own memory.

    Args:
        make: Takes the array, which it writes, and those of all sources.
        kept: True to use its own memory from the first read.
    """

    def __init__(
        self, engine: Engine, layout: Layout, make: Callable[..., None],
        *sources: BlobArg | DerivedArg, kept: bool = False,
    ) -> None:  # fmt: skip
        Derived.__init__(self, make, *sources)
        Argument.__init__(self, layout)
        self.engine, self._kept = engine, kept
        self._own: np.ndarray | None = None

    def array(self) -> np.ndarray:
        target = self._own
        if target is None and not self._kept and self.version != self._made_from:
            target = self.engine.call_scratch(self.layout.size)
        elif target is None:
            target, self._made_from = aligned(self.layout.size), None
            self._own = target
        self.follow(target)
        return target

    @property
    def copied(self) -> int:
        return 0 if self._own is None else self._own.nbytes


class BufferArg(Argument):
    """An argument that is a contiguous buffer of the Step, or a part of a buffer."""

    __slots__ = ("_buffer",)

    def __init__(self, layout: Layout, buffer: np.ndarray) -> None:
        super().__init__(layout)
        self._buffer = buffer

    def array(self) -> np.ndarray:
        return self._buffer


class ScratchArg(Argument):
    """An argument in scratch memory of the call."""

    __slots__ = ()

    def array(self) -> np.ndarray:
        return self.engine.call_scratch(self.layout.size)


class BlobArg(Argument):
    """An argument that is a blob's data or gradient.

    Args:
        blob: The blob. Its memory is read in each pass, because layers may share another memory in
            their forward pass.
    """

    __slots__ = ("blob", "diff")

    def __init__(self, blob: Operand, layout: Layout, *, diff: bool = False) -> None:
        super().__init__(layout)
        self.blob, self.diff = blob, diff

    @property
    def memory(self) -> Memory:
        """The memory of this pass."""
        return self.blob.diff_memory if self.diff else self.blob.data_memory

    @property
    def version(self) -> tuple[tuple[int, int], ...]:
        """Changes whenever the contents may have changed."""
        memory = self.memory
        return ((memory.serial, memory.version),)

    def in_layout(self, layout: Layout) -> Self:
        """Return an argument for the same contents in another layout."""
        return type(self)(self.blob, layout, diff=self.diff)


A = TypeVar("A", bound=BlobArg)


class _Contents(BlobArg):
    """The contents of a blob, in whatever layout, as the source of a copy."""

    __slots__ = ()

    def array(self) -> Any:
        return self.memory


class InputArg(BlobArg):
    """An argument that is read."""

    __slots__ = ("_copy",)

    alone: ClassVar[bool] = False

    def __init__(self, blob: Operand, layout: Layout, *, diff: bool = False) -> None:
        super().__init__(blob, layout, diff=diff)
        self._copy: DerivedArg | None = None

    @property
    def layout_use(self) -> LayoutUse | None:
        return None if self.diff else LayoutUse("preferred", self.blob, None)

    def array(self) -> np.ndarray:
        memory = self.memory
        if self.plain:
            return memory.cpu_data()
        side: np.ndarray | None = memory.private_data(self.layout, alone=self.alone)
        if side is not None:
            return side
        if self._copy is None:
            contents = _Contents(self.blob, self.layout, diff=self.diff)
            self._copy = DerivedArg(self.engine, self.layout, self._convert, contents)
        return self._copy.array()

    def _convert(self, target: np.ndarray, memory: Memory) -> None:
        memory.convert(self.layout, target)

    @property
    def copied(self) -> int:
        return 0 if self._copy is None else self._copy.copied


class PreferredArg(InputArg):
    """An argument that is read, by a kernel for which one layout is best.

    Args:
        layout: The layout in which it is read.
        best: The best one; the same by default.
    """

    __slots__ = ("_best",)

    def __init__(
        self, blob: Operand, layout: Layout, best: Layout | None = None, *, diff: bool = False
    ) -> None:
        super().__init__(blob, layout, diff=diff)
        self._best = layout if best is None else best

    @property
    def layout_use(self) -> LayoutUse:
        return LayoutUse("preferred", self.blob, self._best)


class ParamArg(InputArg):
    """A parameter that is read, stored in this layout alone if possible."""

    __slots__ = ()

    alone = True


Source = InputArg | DerivedArg
"""An argument from which another is made."""


class OutputArg(BlobArg):
    """An argument that is overwritten."""

    __slots__ = ()

    @property
    def layout_use(self) -> LayoutUse | None:
        if len(self.layout.shape) == 1:  # fits any shape in C order
            return None
        return LayoutUse("written", self.blob, self.layout, self.diff)

    def array(self) -> np.ndarray:
        memory = self.memory
        if self.plain:
            return memory.mutable_cpu_data(discard=True)
        side: np.ndarray = memory.mutable_private_data(self.layout)
        return side


class StateArg(OutputArg):
    """A layer's state that is read and overwritten, in C order."""

    __slots__ = ()

    def array(self) -> np.ndarray:
        return self.memory.mutable_cpu_data()


def parameters(blobs: Iterable[Operand], kind: type[A]) -> list[A]:
    """Return arguments of a kind for parameters in C order."""
    return [kind(blob, plain((blob.count,))) for blob in blobs]


class GradArg(OutputArg):
    """A parameter's gradient: overwritten where it was cleared, added to otherwise."""

    __slots__ = ("_part",)
    layout_use = None

    def __init__(self, blob: Operand, layout: Layout, *, diff: bool = True) -> None:
        super().__init__(blob, layout, diff=diff)
        self._part: np.ndarray | None = None

    def array(self) -> np.ndarray:
        self._part = None
        if self.memory.cleared:
            return super().array()
        self._part = self.engine.call_scratch(self.layout.size)
        return self._part

    def done(self) -> None:
        if self._part is None:
            return
        call_recorder.mark_incomplete()
        memory, layout, part = self.memory, self.layout, self._part
        if memory.layout is layout:
            total = memory.mutable_private_data(layout)
        else:
            if not self.plain:
                in_order = plain(layout.shape)
                part = aligned(in_order.size)
                self.engine.reorder(self._part, layout, part, in_order)
            total = memory.mutable_cpu_data()[: part.shape[0]]
        total += part


def rounded_input(at: Layouts, blob: Operand, layout: Layout, groups: int = 1) -> InputArg:
    """Return a blob in a layout, or in bfloat16 if it is written so, which is preferred."""
    best = rounded(layout, groups)
    if best is layout:
        return InputArg(blob, layout)
    found = written_layout(at, blob.data_memory, layout.shape, bf16=True)
    return PreferredArg(blob, best if found is best else layout, best)


def rounded_output(
    at: Layouts, blob: Operand, layout: Layout, groups: int = 1, read: Sequence[InputArg] = ()
) -> OutputArg:
    """Return a blob in a layout, or in bfloat16 if all readers prefer that.

    A blob that is ``read``, too, is overwritten in place, as it lies.
    """
    for source in read:
        if source.blob is blob:
            return OutputArg(blob, source.layout)
    best = rounded(layout, groups)
    return OutputArg(blob, best if at.agreed(blob.data_memory) is best else layout)


def rounded_ends(
    at: Layouts, source: BlobArg, target: BlobArg, groups: int = 1
) -> tuple[InputArg, OutputArg]:
    """Return a bottom and a top in their layouts, or in bfloat16 where others agree."""
    read = rounded_input(at, source.blob, source.layout, groups)
    return read, rounded_output(at, target.blob, target.layout, groups, [read])


def rounded_addend(target: OutputArg, other: Operand, groups: int = 1) -> PreferredArg:
    """Return a blob that is added to a target, in its layout; bfloat16 is preferred."""
    return PreferredArg(other, target.layout, rounded(target.layout, groups))


def written_layout(
    layouts: Layouts, memory: Memory, shape: tuple[int, ...], *, bf16: bool = False
) -> Layout:
    """Return the layout in which a Step writes a memory; C order if unknown.

    The layout is of float32, unless the caller takes ``bf16``, too.
    """
    found: Any = layouts.written(memory, shape)
    if found is None:
        return plain(shape)
    return found if bf16 or not found.bf16 else stored(found, bf16=False)
