"""Pinned host memory, whose blocks are handed out again the moment they are given back."""

from __future__ import annotations

import ctypes
import sys
import weakref
from bisect import bisect_right, insort
from collections import defaultdict
from functools import cache
from typing import Any

import numpy as np

from gpu import machine

POISON = 0xFF


class _Block:
    def __init__(self, size: int) -> None:
        raw = np.empty(size + 512, np.uint8)
        skip = -raw.ctypes.data % 512
        self.array, self.size = raw[skip : skip + size], size
        self.ptr = int(self.array.ctypes.data)
        insort(_starts, self.ptr)
        _known[self.ptr] = self


_starts: list[int] = []
_known: dict[int, _Block] = {}
_leaving: dict[int, list[tuple[machine.Queue, int]]] = {}


def is_memory_pinned(data: int) -> bool:
    """As ``cupy.cuda.pinned_memory.is_memory_pinned``, of an address."""
    at = bisect_right(_starts, data) - 1
    return at >= 0 and data < _starts[at] + _known[_starts[at]].size


class PinnedMemory:
    """As ``cupy.cuda.PinnedMemory``: a block of its own, of exactly the size asked for."""

    def __init__(self, size: int, flags: int = 0) -> None:
        self._block = _Block(size)
        self._block.array.fill(POISON)
        self.ptr, self.size = self._block.ptr, size

    def __del__(self, ending: Any = sys.is_finalizing) -> None:
        """Give it back to the system when all that is queued now is done, for which it waits.

        A collection of garbage calls this anywhere, also within a piece of work, and before
        members of a group have come as far: nothing runs here.
        """
        if ending():
            return
        with machine.lock:
            queues = [queue for gpu in machine.gpus for queue in gpu.queues.values()]
            _leaving[self.ptr] = [(queue, queue.issued) for queue in queues]
            for start, waited in list(_leaving.items()):
                if all(queue.finished >= number for queue, number in waited):
                    del _leaving[start], _known[start]
                    _starts.remove(start)


class PinnedMemoryPointer:
    """As ``cupy.cuda.PinnedMemoryPointer``: what it makes, numpy reads as a buffer."""

    def __new__(cls, mem: Any, offset: int) -> Any:
        pointer = _bytes_of(mem.size - offset).from_address(mem.ptr + offset)
        pointer.mem = mem
        return pointer


@cache
def _bytes_of(count: int) -> type[Any]:
    """Return a type of so many bytes that knows its address."""

    class Pointer(ctypes.Array):
        _type_ = ctypes.c_uint8
        _length_ = count

        @property
        def ptr(self) -> int:
            return ctypes.addressof(self)

        def size(self) -> int:
            return count

    return Pointer


class PinnedMemoryPool:
    """As ``cupy.cuda.PinnedMemoryPool``."""

    def __init__(self, allocator: Any = None) -> None:
        self._free: dict[int, list[_Block]] = defaultdict(list)

    def malloc(self, size: int) -> Any:
        unit = 512
        while unit < size:
            unit *= 2
        idle = self._free[unit]
        block = idle.pop() if idle else _Block(unit)
        block.array.fill(POISON)
        pointer = _bytes_of(unit).from_address(block.ptr)
        weakref.finalize(pointer, idle.append, block)
        return pointer

    def free_all_blocks(self) -> None:
        """As cupy's. The memory stays known: a queued copy may still read it."""
        self._free.clear()

    def n_free_blocks(self) -> int:
        return sum(map(len, self._free.values()))


default_pool = PinnedMemoryPool()


def alloc_pinned_memory(size: int) -> Any:
    """As ``cupy.cuda.alloc_pinned_memory``."""
    return default_pool.malloc(size)


def get_default_pinned_memory_pool() -> PinnedMemoryPool:
    """As cupy's."""
    return default_pool
