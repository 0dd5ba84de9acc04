"""Arguments of kernels, in the layout that each needs."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.layout import Layout, plain
from demitasse.backends.kernels.language import call_recorder
from demitasse.backends.step import Layouts, LayoutUse, Memory, Operand
from demitasse.errors import DeviceError, ErrorCode

NEVER = (-1, -1)


class CachedReorder:
    """A memory's contents in another form, converted again after a change.

    While every read follows a change, as for parameters in training, the copy is in shared scratch
    memory. After two reads without a change in between, the copy gets its own memory.

    Args:
        role: Name of the copy's scratch memory. Copies of one role overwrite each other.
        kept: True to use its own memory from the first read.
    """

    __slots__ = ("_kept", "_make", "_own", "_role", "_size", "_version")

    def __init__(
        self,
        role: str,
        size: int,
        make: Callable[[Memory, np.ndarray], None],
        *,
        kept: bool = False,
    ) -> None:
        self._role, self._size, self._make, self._kept = role, size, make, kept
        self._own: np.ndarray | None = None
        self._version = NEVER

    @property
    def nbytes(self) -> int:
        """Bytes of its own memory."""
        return 0 if self._own is None else self._own.nbytes

    def of(self, memory: Memory, engine: Engine) -> np.ndarray:
        """Return the present copy, valid until the next copy of this role. Shape: (size,)."""
        version = memory.serial, memory.version
        target = self._own
        if target is None and not self._kept and version != self._version:
            target = engine.scratch_for(self._role, self._size)
        elif target is None:
            target, self._version = aligned(self._size), NEVER
            self._own = target
        elif version == self._version:
            return target
        self._version = NEVER  # should this be cut short
        self._make(memory, target)
        self._version = version
        return target


class Argument(ABC):
    """An argument of a kernel.

    Attributes:
        engine: Set by the call.
        role: Name of the scratch memory for copies. Copies of one role share the memory.
    """

    __slots__ = ("engine", "layout", "plain", "role")

    engine: Engine

    def __init__(self, role: str, layout: Layout) -> None:
        self.role, self.layout, self.plain = role, layout, layout.plain

    @abstractmethod
    def array(self) -> np.ndarray:
        """Return the memory in the kernel's layout. Shape: (layout.size,)."""

    def done(self) -> None:  # noqa: B027 - most have nothing to clean up
        """Clean up, after the kernel ran."""

    @property
    def copied(self) -> int:
        """Bytes of a copy in another layout that it keeps."""
        return 0

    @property
    def layout_use(self) -> LayoutUse | None:
        """The layout in which it uses a blob, for Steps that are prepared later."""
        return None


class BufferArg(Argument):
    """An argument that is a buffer of the Step, or a part of a buffer.

    Attributes:
        buffer: Contiguous array of the next run.
    """

    __slots__ = ("buffer",)

    def __init__(self, role: str, layout: Layout, buffer: np.ndarray | None = None) -> None:
        super().__init__(role, layout)
        self.buffer = buffer

    def array(self) -> np.ndarray:
        if self.buffer is None:
            message = "a product was run before its buffers were named"
            raise DeviceError(message, code=ErrorCode.BAD_STATE)
        return self.buffer


def scratch_argument(engine: Engine, role: str, layout: Layout) -> BufferArg:
    """Return an argument in shared memory, for a gradient that is not wanted."""
    return BufferArg(role, layout, engine.scratch_for(role, layout.size))


class BlobArg(Argument):
    """An argument that is a blob's data or gradient.

    Args:
        blob: The blob. Its memory is read in each pass, because layers may share another memory in
            their forward pass.
    """

    __slots__ = ("blob", "diff")

    def __init__(self, role: str, blob: Operand, layout: Layout, *, diff: bool = False) -> None:
        super().__init__(role, layout)
        self.blob, self.diff = blob, diff

    @property
    def memory(self) -> Memory:
        """The memory of this pass."""
        return self.blob.diff_memory if self.diff else self.blob.data_memory


class InputArg(BlobArg):
    """An argument that is read."""

    __slots__ = ("_copy",)

    alone: ClassVar[bool] = False

    def __init__(self, role: str, blob: Operand, layout: Layout, *, diff: bool = False) -> None:
        super().__init__(role, blob, layout, diff=diff)
        self._copy = CachedReorder(role, layout.size, self._convert)

    @property
    def layout_use(self) -> LayoutUse | None:
        return None if self.diff else LayoutUse("preferred", self.blob, self.layout)

    def array(self) -> np.ndarray:
        memory = self.memory
        if self.plain:
            return memory.cpu_data()
        side: np.ndarray | None = memory.private_data(self.layout, alone=self.alone)
        return self._copy.of(memory, self.engine) if side is None else side

    def _convert(self, memory: Memory, target: np.ndarray) -> None:
        memory.convert(self.layout, target)

    @property
    def copied(self) -> int:
        return self._copy.nbytes


class ParamArg(InputArg):
    """A parameter that is read, stored in this layout alone if possible."""

    __slots__ = ()

    alone = True


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


class GradArg(OutputArg):
    """A parameter's gradient: overwritten where it was cleared, added to otherwise."""

    __slots__ = ("_part",)

    def __init__(self, role: str, blob: Operand, layout: Layout) -> None:
        super().__init__(role, blob, layout, diff=True)
        self._part: np.ndarray | None = None

    @property
    def layout_use(self) -> None:
        return None

    def array(self) -> np.ndarray:
        self._part = None
        if self.memory.cleared:
            return super().array()
        self._part = self.engine.scratch_for(self.role, self.layout.size)
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


def layout_uses(arguments: Iterable[Argument]) -> list[LayoutUse]:
    """Return the layouts in which arguments use blobs."""
    return [use for argument in arguments if (use := argument.layout_use) is not None]


def written_layout(layouts: Layouts, memory: Memory, shape: tuple[int, ...]) -> Layout:
    """Return the layout in which a Step writes a memory; C order if unknown."""
    found: Any = layouts.written(memory, shape)
    return plain(shape) if found is None else found
