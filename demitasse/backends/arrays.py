"""Array types of the engine, aligned host arrays, and slices of a Concat's top."""

from __future__ import annotations

import math
import mmap
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

Array = Any  # an array of some namespace; shapes live in docstrings

LARGE_PAGE = 2 << 20


class Event(Protocol):
    """A point in a device's queue of work."""

    def synchronize(self) -> None:
        """Wait until the device has passed this point."""


class PrivateLayout(Protocol):
    """An order of a shape's elements that only a backend's Steps understand.

    Equal layouts are the same object.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def size(self) -> int: ...


class ArrayHolder(Protocol):
    """A side of a memory, with a one-dimensional array."""

    array: Any


class ArrayRef:
    """A writable reference to the array of a memory; every write replaces the array.

    Arrays of some libraries are immutable. A reference to one is written as a view of a mutable
    array is: ``ref[...] = values``, ``ref[1:, ::2] = values``, ``ref += values``. A slice of a
    one-dimensional reference is a reference; any other index, as ``ref[...]``, reads.

    Args:
        backend: The backend of the array.
        side: The side of the memory; its one-dimensional ``array`` is replaced.
        shape: Shape of the reference.
        first: Index of the first element in the array.
    """

    __slots__ = ("_backend", "_first", "_side", "shape")

    def __init__(
        self, backend: Any, side: ArrayHolder, shape: tuple[int, ...], first: int = 0
    ) -> None:
        self._backend, self._side, self._first, self.shape = backend, side, first, shape

    @property
    def dtype(self) -> Any:
        """The namespace's dtype of the array."""
        return self._side.array.dtype

    def view(self, shape: tuple[int, ...], count: int) -> ArrayRef:
        """Return a reference to the first ``count`` elements, in ``shape``."""
        del count
        return ArrayRef(self._backend, self._side, shape, self._first)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice) and len(self.shape) == 1:
            first, last, _ = index.indices(self.shape[0])
            shape = (max(0, last - first),)
            return ArrayRef(self._backend, self._side, shape, self._first + first)
        flat, count = self._side.array, math.prod(self.shape)
        if count != flat.shape[0]:
            flat = flat[self._first : self._first + count]
        array = self._backend.xp.reshape(flat, self.shape)
        return array if index is Ellipsis else array[index]

    def __setitem__(self, index: Any, values: Any) -> None:
        if isinstance(values, ArrayRef):
            values = values[...]
        backend, flat, count = self._backend, self._side.array, math.prod(self.shape)
        if index is not Ellipsis:
            values = backend.set_at(self[...], index, values)
        values = backend.xp.reshape(backend.broadcast(values, self.shape, flat.dtype), (count,))
        if count != flat.shape[0]:
            values = backend.set_at(flat, slice(self._first, self._first + count), values)
        self._side.array = backend.stored(values)

    def __iadd__(self, other: Any) -> ArrayRef:
        self[...] = self[...] + other
        return self

    def __isub__(self, other: Any) -> ArrayRef:
        self[...] = self[...] - other
        return self

    def __imul__(self, other: Any) -> ArrayRef:
        self[...] = self[...] * other
        return self

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self[...].__dlpack__(**kwargs)


def address(array: np.ndarray) -> int:
    """Return where an array begins."""
    where: int = array.__array_interface__["data"][0]
    return where


def aligned(size: int) -> np.ndarray:
    """Return ``size`` float32 zeros that begin at a multiple of 64 bytes. Shape: (size,).

    Large arrays use huge pages if the system has them, for fewer TLB misses.
    """
    if size * 4 < LARGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        raw = np.zeros(size + 16, np.float32)
        skip = -(raw.ctypes.data // 4) % 16
        return raw[skip : skip + size]
    memory = mmap.mmap(-1, size * 4 + LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    raw = np.frombuffer(memory, np.float32)
    skip = -raw.ctypes.data % LARGE_PAGE
    whole = size * 4 // LARGE_PAGE * LARGE_PAGE  # the rest in small pages: nothing is wasted
    with suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE, skip, whole)
    return raw[skip // 4 : skip // 4 + size]


def give_back(array: np.ndarray) -> None:
    """Return the memory of a large array of ``aligned``, or of a part of it, to the system.

    The memory then reads as zeros. It is unchanged if the system cannot take it back.
    """
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    memory = owner.obj if isinstance(owner, memoryview) else None
    if not isinstance(memory, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    begin = address(array) - address(np.frombuffer(memory, np.uint8))
    first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
    size = (begin + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - first
    if size > 0:
        with suppress(OSError):
            memory.madvise(mmap.MADV_DONTNEED, first, size)
