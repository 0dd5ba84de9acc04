"""Arguments of primitives and kernels, in the layout that each needs."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.language import command_queue
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.library.primitive import Description, Primitive
from demitasse.backends.step import Layouts, LayoutUse, Memory, Operand
from demitasse.errors import DeviceError, ErrorCode

NEVER = (-1, -1)


class CachedReorder:
    """A memory's contents in another form, converted again after a change.

    While every read follows a change, as for parameters in training, the copy is in shared scratch
    memory. After two reads without a change in between, the copy gets its own memory.

    Args:
        role: Argument of the copy. Copies of one role overwrite each other.
        kept: True to use its own memory from the first read.
    """

    __slots__ = ("_kept", "_make", "_own", "_role", "_size", "_version")

    def __init__(
        self,
        role: int,
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
        if self._own is None:
            if version != self._version and not self._kept:
                lent = engine.scratch_for(self._role, self._size)
                with command_queue.immediate():  # queued calls may still read the scratch memory
                    self._make(memory, lent)
                self._version = version
                return lent
            self._version = NEVER  # of memory of its own
            self._own = aligned(self._size)
        if version != self._version:
            self._version = NEVER  # should this be cut short
            with command_queue.immediate():  # complete before the version is stored
                self._make(memory, self._own)
            self._version = version
        return self._own


class Argument(ABC):
    """An argument of a primitive.

    Attributes:
        descriptor: The part of the memory that the primitive reads or writes; by default all.
    """

    __slots__ = ("descriptor", "engine", "layout", "place", "plain", "primitive", "role")

    cleans_up: ClassVar[bool] = False
    """True if ``done`` does something."""

    def __init__(self, role: int, layout: Layout) -> None:
        self.role, self.layout, self.plain = role, layout, layout.plain
        self.descriptor = layout.handle

    def attach(self, primitive: Primitive, engine: Engine) -> None:
        """Attach the argument to a primitive."""
        self.engine = engine
        self.primitive, self.place = primitive, primitive.place(self.role)

    @abstractmethod
    def array(self) -> np.ndarray:
        """Return the memory in the primitive's layout. Shape: (layout.size,)."""

    def ready(self) -> None:
        """Bind the memory, before the primitive runs."""
        self.primitive.bind(self.place, self.array())

    def done(self) -> None:  # noqa: B027 - most have nothing to clean up
        """Clean up, after the primitive ran."""

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

    def __init__(self, role: int, layout: Layout, buffer: np.ndarray | None = None) -> None:
        super().__init__(role, layout)
        self.buffer = buffer

    def array(self) -> np.ndarray:
        if self.buffer is None:
            message = "a product was run before its buffers were named"
            raise DeviceError(message, code=ErrorCode.BAD_STATE)
        return self.buffer


def scratch_argument(engine: Engine, role: int, layout: Layout) -> BufferArg:
    """Return an argument in shared memory, for a gradient that is not wanted."""
    return BufferArg(role, layout, engine.scratch_for(role, layout.size))


class BlobArg(Argument):
    """An argument that is a blob's data or gradient.

    Args:
        blob: The blob. Its memory is read in each pass, because layers may share another memory in
            their forward pass.
    """

    __slots__ = ("blob", "diff")

    def __init__(self, role: int, blob: Operand, layout: Layout, *, diff: bool = False) -> None:
        super().__init__(role, layout)
        self.blob, self.diff = blob, diff

    @property
    def memory(self) -> Memory:
        """The memory."""
        return self.blob.diff_memory if self.diff else self.blob.data_memory


class InputArg(BlobArg):
    """An argument that is read."""

    __slots__ = ("_copy",)

    def __init__(self, role: int, blob: Operand, layout: Layout, *, diff: bool = False) -> None:
        super().__init__(role, blob, layout, diff=diff)
        self._copy = CachedReorder(role, layout.size, self._convert)

    @property
    def layout_use(self) -> LayoutUse | None:
        return None if self.diff else LayoutUse("preferred", self.blob, self.layout)

    def array(self) -> np.ndarray:
        memory = self.blob.diff_memory if self.diff else self.blob.data_memory
        if self.plain:
            return memory.cpu_data()
        side: np.ndarray | None = memory.private_data(self.layout)
        return self._converted() if side is None else side

    def _converted(self) -> np.ndarray:
        """Return a copy in this layout of contents in another layout."""
        return self._copy.of(self.memory, self.engine)

    def _convert(self, memory: Memory, target: np.ndarray) -> None:
        memory.convert(self.layout, target)

    @property
    def copied(self) -> int:
        return self._copy.nbytes


class ParamArg(InputArg):
    """A parameter that is read, stored in this layout alone if possible."""

    __slots__ = ()

    def array(self) -> np.ndarray:
        if self.plain:
            return self.blob.data_memory.cpu_data()
        side: np.ndarray | None = self.blob.data_memory.private_data(self.layout, alone=True)
        return self._converted() if side is None else side


class OutputArg(BlobArg):
    """An argument that is overwritten."""

    __slots__ = ()

    @property
    def layout_use(self) -> LayoutUse | None:
        if len(self.layout.shape) == 1:  # fits any shape in C order
            return None
        return LayoutUse("written", self.blob, self.layout, self.diff)

    def array(self) -> np.ndarray:
        memory = self.blob.diff_memory if self.diff else self.blob.data_memory
        if self.plain:
            return memory.mutable_cpu_data(discard=True)
        side: np.ndarray = memory.mutable_private_data(self.layout)
        return side


class GradArg(BlobArg):
    """A parameter's gradient: overwritten where it was cleared, added to otherwise."""

    __slots__ = ("_part",)

    cleans_up = True

    def __init__(self, role: int, blob: Operand, layout: Layout) -> None:
        super().__init__(role, blob, layout, diff=True)
        self._part: np.ndarray | None = None

    def array(self) -> np.ndarray:
        memory = self.memory
        self._part = (
            None if memory.cleared else self.engine.scratch_for(self.role, self.layout.size)
        )
        if self._part is not None:
            return self._part
        if self.plain:
            return memory.mutable_cpu_data(discard=True)
        side: np.ndarray = memory.mutable_private_data(self.layout)
        return side

    def done(self) -> None:
        if self._part is None:
            return
        command_queue.mark_incomplete()
        memory, layout = self.memory, self.layout
        if memory.layout is layout:
            total = memory.mutable_private_data(layout)
            total += self._part
            return
        part = self._part
        if not self.plain:
            part = aligned(int(np.prod(layout.shape)))
            self.engine.reorder(self._part, layout, part, self.engine.plain(layout.shape))
        total = memory.mutable_cpu_data()[: part.shape[0]]
        total += part


def layout_uses(arguments: Iterable[Argument]) -> list[LayoutUse]:
    """Return the layouts in which arguments use blobs."""
    return [use for argument in arguments if (use := argument.layout_use) is not None]


def written_layout(
    engine: Engine, layouts: Layouts, memory: Memory, shape: tuple[int, ...]
) -> Layout:
    """Return the layout in which a Step writes a memory; C order if unknown.

    Raises:
        Declined: The shape has too many axes.
    """
    found: Any = layouts.written(memory, shape)
    return engine.plain(shape) if found is None else found


class Call:
    """A primitive with its arguments.

    Args:
        arguments: Arguments that change their memory; those that are read come first.
        fixed: Arguments that are buffers of our own, by role, with their descriptors.
    """

    __slots__ = ("_cleaned", "arguments", "primitive")

    def __init__(
        self,
        engine: Engine,
        description: Description,
        arguments: Sequence[Argument],
        fixed: Sequence[tuple[int, int, np.ndarray]] = (),
    ) -> None:
        uses = [(argument.role, argument.descriptor) for argument in arguments]
        uses += [(role, descriptor) for role, descriptor, _ in fixed]
        self.primitive = description.primitive(engine.stream, uses)
        self.arguments = tuple(arguments)
        self._cleaned = [argument for argument in arguments if argument.cleans_up]
        for argument in arguments:
            argument.attach(self.primitive, engine)
        for role, _, buffer in fixed:
            self.primitive.bind(self.primitive.place(role), buffer)

    def __call__(self) -> None:
        for argument in self.arguments:
            argument.ready()
        self.primitive.run()
        for argument in self._cleaned:
            argument.done()

    @property
    def implementations(self) -> list[str]:
        """Names of the library's code that it runs."""
        return [self.primitive.implementation]

    @property
    def workspace(self) -> int:
        """Bytes of converted copies it holds."""
        return sum(argument.copied for argument in self.arguments)

    @property
    def layout_uses(self) -> list[LayoutUse]:
        """The layouts of its blobs."""
        return layout_uses(self.arguments)
