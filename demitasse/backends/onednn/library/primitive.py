"""Primitives: prepared once, bound to buffers, run again and again."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from ctypes import c_char_p, c_int, c_void_p
from typing import Any

import numpy as np

from demitasse.backends.arrays import address
from demitasse.backends.kernels.language import later
from demitasse.backends.onednn.library.constants import Arg, Query
from demitasse.backends.onednn.library.failures import check, create
from demitasse.backends.onednn.library.layout import Layout, layout_of
from demitasse.backends.onednn.library.stream import Stream
from demitasse.errors import DeviceError

__all__ = ["Description", "Primitive"]


class _Argument(ctypes.Structure):
    _fields_ = (("role", c_int), ("memory", c_void_p))


class Description:
    """A primitive that could be made: its implementation and the layouts it wants.

    Args:
        library: The library.
        handle: oneDNN's primitive descriptor, which belongs to this object from now on.

    Attributes:
        implementation: Name of the code that would run, e.g. "jit:avx512_core".
    """

    def __init__(self, library: Any, handle: int) -> None:
        self._library, self.handle = library, handle
        weakref.finalize(self, library.dnnl_primitive_desc_destroy, handle).atexit = False
        name = c_char_p()
        check(
            library.dnnl_primitive_desc_query(handle, Query.IMPLEMENTATION, 0, ctypes.byref(name))
        )
        self.implementation = (name.value or b"").decode()

    def layout(self, what: Query) -> Layout:
        """Return the layout of one of its memories.

        Raises:
            Declined: It has no such memory, or an opaque layout.
        """
        return layout_of(self._library, self.descriptor(what))

    def layouts(self, *what: Query) -> list[Layout]:
        """Return the layouts of several memories.

        Raises:
            Declined: One of them is opaque.
        """
        return [self.layout(one) for one in what]

    def bytes_of(self, what: Query) -> int:
        """Return the size of its workspace or scratchpad."""
        descriptor = self.descriptor(what)
        return int(self._library.dnnl_memory_desc_get_size(descriptor)) if descriptor else 0

    def descriptor(self, what: Query, index: int = 0) -> int:
        """Return the memory descriptor of one of its memories; 0 for none.

        Args:
            what: Its kind.
            index: Which of several of that kind.
        """
        return self._library.dnnl_primitive_desc_query_md(self.handle, what, index) or 0


class Primitive:
    """Prepared code with its arguments, which are bound to buffers before it runs.

    The library writes the code when it runs for the first time: many a primitive is prepared whose
    place another one takes.

    Args:
        stream: Where it runs.
        description: What to make.
        uses: Role and memory descriptor of every argument, scratch memory aside.
    """

    def __init__(self, stream: Stream, description: Description, uses: Sequence[tuple[int, int]]):
        self._stream, library = stream, stream.library
        self._describe: Callable[[], Description] = lambda: description
        self.implementation = description.implementation
        self._handle = 0
        self.scratch = description.bytes_of(Query.SCRATCHPAD)
        roles = [(role, descriptor) for role, descriptor in uses if descriptor]
        if self.scratch:
            roles.append((Arg.SCRATCHPAD, description.descriptor(Query.SCRATCHPAD)))
            stream.scratchpad(self.scratch)
        self._places = {role: i for i, (role, _) in enumerate(roles)}
        self._memories = [stream.memory(descriptor) for _, descriptor in roles]
        self._uses = _Uses(stream, [role for role, _ in roles], self._memories)
        self._bound: list[np.ndarray | None] = [None] * len(roles)
        self._addresses = [0] * len(roles)
        self._count = len(roles)
        self._put_off = -1
        self._execute = library.dnnl_primitive_execute
        self._set = library.dnnl_memory_set_data_handle

    def forget(self, describe: Callable[[], Description]) -> None:
        """Let go of the description, which takes some 20 KiB, until the code is written.

        Args:
            describe: Asks for it once more. It does not hold on to whose primitive this is.
        """
        self._describe = describe

    def place(self, role: int) -> int:
        """Return the index of an argument, to bind it with."""
        return self._places[role]

    def bind(self, place: int, buffer: np.ndarray) -> None:
        """Let an argument be ``buffer`` from now on."""
        if self._bound[place] is not buffer:
            self.point(place, address(buffer))
            self._bound[place] = buffer

    def point(self, place: int, where: int) -> None:
        """Let an argument be what is at this address, which the caller keeps alive for the run."""
        self._bound[place] = None
        if self._addresses[place] != where:
            if later.held() and self._put_off == later.turn():
                later.flush()  # where it was pointed last is still to be used
            self._addresses[place] = 0  # unknown, should this be cut short in between
            check(self._set(self._memories[place], where))
            self._addresses[place] = where

    def bound(self, place: int) -> np.ndarray:
        """Return what an argument is bound to."""
        buffer = self._bound[place]
        if buffer is None:
            message = "an argument of a primitive was used before it was bound"
            raise DeviceError(message)
        return buffer

    def release(self) -> None:
        """Let go of all buffers, so that somebody's memory does not live as long as this."""
        self._bound = [None] * self._count

    def run(self) -> None:
        """Compute, now or with what is put off.

        Raises:
            DeviceError: The library refuses.
        """
        if self.scratch:
            self.bind(self._count - 1, self._stream.scratchpad(self.scratch))
        if not self._handle:
            self._write()
        if later.held():
            self._put_off = later.turn()
        later.put(self._execute, self._given(self._uses), (self, *self._bound), check, self._fixed)

    def _given(self, uses: _Uses) -> tuple[Any, ...]:
        return self._handle, self._stream.handle, self._count, uses.arguments

    def _fixed(self) -> tuple[tuple[Any, ...], object]:
        """Return arguments that point where they point now, and what owns them."""
        same = [self._stream.like(memory) for memory in self._memories]
        uses = _Uses(self._stream, self._uses.roles, same)
        for memory, where in zip(uses.memories, self._addresses, strict=True):
            check(self._set(memory, where))
        return self._given(uses), uses

    def _write(self) -> None:
        library = self._stream.library
        description = self._describe()
        handle = create(library.dnnl_primitive_create, description.handle)
        weakref.finalize(self, library.dnnl_primitive_destroy, handle).atexit = False
        self._handle = handle


class _Uses:
    """Arguments in the form that the library takes: memory objects, which point at buffers.

    Args:
        stream: Where the primitive runs.
        roles: The role of every argument.
        memories: Their memory objects, which belong to this from now on.
    """

    def __init__(self, stream: Stream, roles: Sequence[int], memories: list[int]) -> None:
        self.roles, self.memories = roles, memories
        self.arguments = (_Argument * len(roles))()
        for argument, role, memory in zip(self.arguments, roles, memories, strict=True):
            argument.role, argument.memory = role, memory
        weakref.finalize(self, _free_memories, stream.library, memories).atexit = False


def _free_memories(library: Any, memories: list[int]) -> None:
    for memory in memories:
        library.dnnl_memory_destroy(memory)
