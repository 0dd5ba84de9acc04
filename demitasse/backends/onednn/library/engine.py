"""Primitives: prepared once, bound to buffers, run again and again.

An engine is the library with one stream. Scratch memory belongs to the thread that runs, so nets
in different threads do not meet.
"""

from __future__ import annotations

import ctypes
import math
import threading
import weakref
from collections.abc import Callable, Sequence
from ctypes import c_char_p, c_int, c_void_p
from functools import cache
from typing import Any

import numpy as np

from demitasse.backends.arrays import address, aligned
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.onednn.library.attributes import RELU, make_attributes
from demitasse.backends.onednn.library.constants import (
    CPU_ENGINE,
    DEFAULT_STREAM,
    FLOAT32,
    Arg,
    Query,
)
from demitasse.backends.onednn.library.layout import Layout, dims, layout_of, plain
from demitasse.backends.onednn.library.library import AVX2, AVX512, load
from demitasse.errors import DeviceError

__all__ = ["Description", "Engine", "Missing", "Primitive", "engine"]


class _Argument(ctypes.Structure):
    _fields_ = (("role", c_int), ("memory", c_void_p))


class Missing(Exception):  # noqa: N818 - not an error: something else is computed instead
    """The library has no good primitive for a part of a Step."""


class Description:
    """A primitive that could be made: its implementation and the layouts it wants.

    Attributes:
        handle: oneDNN's primitive descriptor.
        implementation: Name of the code that would run, e.g. "jit:avx512_core".
    """

    def __init__(self, owner: Engine, handle: int) -> None:
        self._library, self.handle = owner.library, handle
        name = c_char_p()
        self._library.dnnl_primitive_desc_query(handle, Query.IMPLEMENTATION, 0, ctypes.byref(name))
        self.implementation = (name.value or b"").decode()
        weakref.finalize(self, self._library.dnnl_primitive_desc_destroy, handle).atexit = False

    def layout(self, what: Query, index: int = 0) -> Layout | None:
        """Return the layout of one of its memories, or None where it has none."""
        descriptor = self._library.dnnl_primitive_desc_query_md(self.handle, what, index)
        return layout_of(self._library, descriptor) if descriptor else None

    def layouts(self, *what: Query) -> list[Layout] | None:
        """Return the layouts of several memories; None where one of them is not known."""
        found = [self.layout(one) for one in what]
        known = [layout for layout in found if layout is not None]
        return known if len(known) == len(found) else None

    def bytes_of(self, what: Query) -> int:
        """Return the size of its workspace or scratchpad."""
        descriptor = self._library.dnnl_primitive_desc_query_md(self.handle, what, 0)
        return int(self._library.dnnl_memory_desc_get_size(descriptor)) if descriptor else 0

    def descriptor(self, what: Query) -> int:
        """Return the memory descriptor of one of its memories; 0 for none."""
        return self._library.dnnl_primitive_desc_query_md(self.handle, what, 0) or 0


class Primitive:
    """Prepared code with its arguments, which are bound to buffers before it runs.

    Args:
        owner: The engine.
        description: What to make.
        uses: Role and memory descriptor of every argument, scratch memory aside.
    """

    def __init__(self, owner: Engine, description: Description, uses: Sequence[tuple[int, int]]):
        self._engine, library = owner, owner.library
        self.implementation = description.implementation
        made = c_void_p()
        owner.check(library.dnnl_primitive_create(ctypes.byref(made), description.handle))
        self._handle = made.value or 0
        self.scratch = description.bytes_of(Query.SCRATCHPAD)
        roles = [(role, descriptor) for role, descriptor in uses if descriptor]
        if self.scratch:
            roles.append((Arg.SCRATCHPAD, description.descriptor(Query.SCRATCHPAD)))
            owner.scratch(self.scratch)
        self._memories = [owner.memory(descriptor) for _, descriptor in roles]
        self._places = {role: i for i, (role, _) in enumerate(roles)}
        self._arguments = (_Argument * len(roles))()
        for argument, (role, _), memory in zip(self._arguments, roles, self._memories, strict=True):
            argument.role, argument.memory = role, memory
        self._bound: list[np.ndarray | None] = [None] * len(roles)
        self._addresses = [0] * len(roles)
        self._count = len(roles)
        self._execute = library.dnnl_primitive_execute
        self._stream = owner.stream
        self._set = library.dnnl_memory_set_data_handle
        weakref.finalize(self, _free, library, self._handle, self._memories).atexit = False

    def place(self, role: int) -> int:
        """Return the number of an argument, to bind it with."""
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
            self._addresses[place] = where
            self._set(self._memories[place], where)

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
        """Compute.

        Raises:
            DeviceError: The library refuses.
        """
        if self.scratch:
            self.bind(self._count - 1, self._engine.scratch(self.scratch))
        status = self._execute(self._handle, self._stream, self._count, self._arguments)
        if status:
            self._engine.check(status)


def _free(library: Any, primitive: int, memories: list[int]) -> None:
    library.dnnl_primitive_destroy(primitive)
    for memory in memories:
        library.dnnl_memory_destroy(memory)


class _OfThread(threading.local):
    scratch: np.ndarray | None = None
    workspaces: list[np.ndarray] | None = None
    reorders: dict[tuple[Layout, Layout], Primitive] | None = None


class Engine:
    """The library, with a stream to run in.

    Args:
        library: As :func:`load` returns it.

    Attributes:
        wide: Whether the library uses AVX-512.
        tuning: Of our own kernels, for the instruction set that the library uses; none below AVX2.
        attributes: Of primitives without anything behind them.
        attributes_with_relu: Of those with a rectifier behind them.
        attributes_adding: Of those that add to what the target holds.
    """

    def __init__(self, library: Any) -> None:
        self.library = library
        best = library.dnnl_get_effective_cpu_isa()
        self.wide = best >= AVX512
        self.tuning = Tuning(width=16 if self.wide else 8 if best >= AVX2 else 0)
        self.handle = self._made(library.dnnl_engine_create, CPU_ENGINE, 0)
        self.stream = self._made(library.dnnl_stream_create, self.handle, DEFAULT_STREAM)
        self.attributes = make_attributes(self)
        self.attributes_with_relu = make_attributes(self, functions=[RELU])
        self.attributes_adding = make_attributes(self, keep=1.0)
        self._strided: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
        self._own = _OfThread()

    def describe(self, function: str, *arguments: Any, general: bool = False) -> Description | None:
        """Ask for a primitive; None where the library has only a slow, general one, or none.

        Args:
            function: What is created, e.g. "dnnl_convolution_forward".
            arguments: Of that function.
            general: Take a general one too.
        """
        handle = c_void_p()
        call: Callable[..., int] = getattr(self.library, function + "_primitive_desc_create")
        if call(ctypes.byref(handle), *arguments) or not handle.value:
            return None
        found = Description(self, handle.value)
        return found if general or not found.implementation.startswith("ref") else None

    def plain(self, shape: tuple[int, ...]) -> Layout:
        """Return the layout of a shape in C order."""
        return plain(self.library, shape)

    def strided(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
        """Return the descriptor of a part of a buffer; it lives as long as the process."""
        found = self._strided.get((shape, strides))
        if found is None:
            made = self._made(
                self.library.dnnl_memory_desc_create_with_strides,
                len(shape), dims(shape), FLOAT32, dims(strides),
            )  # fmt: skip
            found = self._strided.setdefault((shape, strides), made)
        return found

    def innermost(self, shape: tuple[int, ...], axis: int) -> int:
        """Return the descriptor of C order but for one axis, whose elements lie side by side."""
        outer = (*shape[:axis], *shape[axis + 1 :], shape[axis])
        strides = [math.prod(outer[place + 1 :]) for place in range(len(outer) - 1)]
        strides.insert(axis, 1)
        return self.strided(shape, tuple(strides))

    def innermost_layout(self, shape: tuple[int, ...], axis: int) -> Layout | None:
        """Return the layout with one axis innermost; None where it is not known."""
        return layout_of(self.library, self.innermost(shape, axis))

    def memory(self, descriptor: int) -> int:
        """Return a memory object without a buffer."""
        return self._made(self.library.dnnl_memory_create, descriptor, self.handle, None)

    def scratch(self, size: int) -> np.ndarray:
        """Return this thread's scratch memory of at least ``size`` bytes."""
        own = self._own.scratch
        if own is None or own.nbytes < size:
            own = self._own.scratch = aligned(-(-size // 4))
        return own

    def workspaces(self, *sizes: int) -> list[np.ndarray]:
        """Return arrays of at least so many elements, the same ones to all Steps of a thread."""
        own = self._own.workspaces
        if own is None:
            own = self._own.workspaces = []
        for place, size in enumerate(sizes):
            if place == len(own):
                own.append(aligned(size))
            elif own[place].shape[0] < size:
                own[place] = aligned(size)
        return own[: len(sizes)]

    def reorder(self, source: np.ndarray, here: Layout, target: np.ndarray, there: Layout) -> None:
        """Copy elements from one layout to another of the same shape; padding becomes 0."""
        known = self._own.reorders
        if known is None:
            known = self._own.reorders = {}
        primitive = known.get((here, there))
        if primitive is None:
            primitive = known[here, there] = self._reorder(here, there)
        primitive.bind(0, source)
        primitive.bind(1, target)
        primitive.run()
        primitive.release()

    def check(self, status: int) -> None:
        """Raise where a call failed.

        Raises:
            DeviceError: ``status`` is not 0.
        """
        if status:
            message = f"oneDNN failed with status {status}"
            raise DeviceError(message)

    def describe_reorder(self, here: int, there: int) -> Description:
        """Ask for a copy from one descriptor to another."""
        handle = c_void_p()
        self.check(
            self.library.dnnl_reorder_primitive_desc_create(
                ctypes.byref(handle), here, self.handle, there, self.handle, self.attributes
            )
        )
        return Description(self, handle.value or 0)

    def _reorder(self, here: Layout, there: Layout) -> Primitive:
        found = self.describe_reorder(here.handle, there.handle)
        return Primitive(self, found, [(Arg.SRC, here.handle), (Arg.DST, there.handle)])

    def _made(self, function: Callable[..., int], *arguments: Any) -> int:
        handle = c_void_p()
        self.check(function(ctypes.byref(handle), *arguments))
        return handle.value or 0


@cache
def engine() -> Engine:
    """Return this process's engine.

    Raises:
        DeviceError: There is no library.
    """
    library = load()
    if library is None:
        message = "oneDNN is not here"
        raise DeviceError(message)
    return Engine(library)
