"""Ports: how a primitive's arguments meet the memories of blobs.

Before a primitive runs, every port makes sure that its memory is there in the layout the primitive
was made for, and binds it. Reading what is in another layout costs a reorder, which is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.onednn.library.engine import Description, Engine, Primitive
from demitasse.backends.onednn.library.layout import Layout

if TYPE_CHECKING:
    from demitasse.memory import SyncedMemory

__all__ = ["Call", "Gradient", "Port", "Reader", "Writer", "converted_bytes"]


class Port:
    """An argument of a primitive that is a memory.

    Args:
        role: Which argument.
        blob: The blob it belongs to. Its memory is looked up each time, for layers may share it
            anew in their forward pass.
        layout: The layout the primitive was made for.
        diff: Whether the gradient is meant, not the data.

    Attributes:
        descriptor: What the primitive sees of the memory: all of it, unless somebody says else.
    """

    __slots__ = (
        "blob", "descriptor", "diff", "engine", "layout", "place", "plain", "primitive", "role",
    )  # fmt: skip

    def __init__(self, role: int, blob: Any, layout: Layout, *, diff: bool = False) -> None:
        self.role, self.blob, self.layout, self.diff = role, blob, layout, diff
        self.plain = layout.plain
        self.descriptor = layout.handle

    def attach(self, primitive: Primitive, engine: Engine) -> None:
        """Belong to this primitive."""
        self.engine = engine
        self.primitive, self.place = primitive, primitive.place(self.role)

    @property
    def memory(self) -> SyncedMemory:
        """The memory."""
        memory: SyncedMemory = self.blob.diff_memory if self.diff else self.blob.data_memory
        return memory

    def array(self) -> np.ndarray:
        """Return the memory in our layout, as it is needed now. Shape: (layout.size,)."""
        raise NotImplementedError

    def ready(self) -> None:
        """Bind the memory, before the primitive runs."""
        self.primitive.bind(self.place, self.array())

    def done(self) -> None:
        """Clean up, after the primitive ran."""


class Reader(Port):
    """An argument that is read."""

    __slots__ = ("scratch", "version")

    def __init__(self, role: int, blob: Any, layout: Layout, *, diff: bool = False) -> None:
        super().__init__(role, blob, layout, diff=diff)
        self.scratch: np.ndarray | None = None
        self.version = (-1, -1)

    def array(self) -> np.ndarray:
        memory = self.blob.diff_memory if self.diff else self.blob.data_memory
        if self.plain:
            host: np.ndarray = memory.cpu_data()
            return host
        side: np.ndarray | None = memory.private_data(self.layout)
        return self._converted() if side is None else side

    def _converted(self) -> np.ndarray:
        """Return a copy in our layout of what is up to date in another; kept while it is true."""
        if self.scratch is None:
            self.scratch = aligned(self.layout.size)
        memory = self.memory
        if self.version != (memory.serial, memory.version):
            memory.convert(self.layout, self.scratch)
            self.version = memory.serial, memory.version
        return self.scratch


class Writer(Port):
    """An argument that is overwritten."""

    __slots__ = ()

    def array(self) -> np.ndarray:
        memory = self.blob.diff_memory if self.diff else self.blob.data_memory
        side: np.ndarray = (
            memory.mutable_cpu_data(discard=True)
            if self.plain
            else memory.mutable_private_data(self.layout)
        )
        return side


class Gradient(Port):
    """A parameter's gradient: overwritten where it was cleared, added to otherwise."""

    __slots__ = ("adds", "scratch")

    def __init__(self, role: int, blob: Any, layout: Layout, *, diff: bool = False) -> None:
        super().__init__(role, blob, layout, diff=diff)
        self.scratch: np.ndarray | None = None
        self.adds = False

    def array(self) -> np.ndarray:
        memory = self.memory
        self.adds = memory.head.value != 0
        if self.adds:
            if self.scratch is None:
                self.scratch = aligned(self.layout.size)
            return self.scratch
        if self.plain:
            return memory.mutable_cpu_data(discard=True)
        side: np.ndarray = memory.mutable_private_data(self.layout)
        return side

    def done(self) -> None:
        if not self.adds or self.scratch is None:
            return
        memory, layout = self.memory, self.layout
        if memory.layout is layout:
            total = memory.mutable_private_data(layout)
            total += self.scratch
            return
        part = self.scratch
        if not self.plain:
            part = aligned(int(np.prod(layout.shape)))
            self.engine.reorder(self.scratch, layout, part, self.engine.plain(layout.shape))
        total = memory.mutable_cpu_data()[: part.shape[0]]
        total += part


def converted_bytes(ports: Sequence[Port]) -> int:
    """Return the bytes of converted copies that ports hold."""
    scratch = (getattr(port, "scratch", None) for port in ports)
    return sum(array.nbytes for array in scratch if array is not None)


class Call:
    """A primitive with its ports: what a Step runs.

    Args:
        engine: The engine.
        description: The primitive to make.
        ports: Arguments that are memories; those that are read come first.
        fixed: Arguments that are buffers of our own, by role, with their descriptors.
    """

    __slots__ = ("ports", "primitive")

    def __init__(
        self,
        engine: Engine,
        description: Description,
        ports: Sequence[Port],
        fixed: Sequence[tuple[int, int, np.ndarray]] = (),
    ) -> None:
        uses = [(port.role, port.descriptor) for port in ports]
        uses += [(role, descriptor) for role, descriptor, _ in fixed]
        self.primitive = Primitive(engine, description, uses)
        self.ports = tuple(ports)
        for port in ports:
            port.attach(self.primitive, engine)
        for role, _, buffer in fixed:
            self.primitive.bind(self.primitive.place(role), buffer)

    def __call__(self) -> None:
        for port in self.ports:
            port.ready()
        self.primitive.run()
        for port in self.ports:
            port.done()

    @property
    def implementations(self) -> list[str]:
        """Names of the library's code that it runs."""
        return [self.primitive.implementation]

    @property
    def workspace(self) -> int:
        """Bytes of converted copies it holds."""
        return converted_bytes(self.ports)
