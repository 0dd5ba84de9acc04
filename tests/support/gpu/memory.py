"""Device memory: pools keyed by stream, whose blocks hold poison when they are handed out."""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from gpu import machine
from gpu.errors import Misuse, OutOfMemoryError
from gpu.pinned import is_memory_pinned
from gpu.streams import get_current_stream

UNIT = 512
"""Bytes that blocks are a multiple of, and that they begin at a multiple of."""

POISON = 0xFF
"""What every byte of new memory is: NaN in floats, -1 in integers."""


class Block:
    """Memory of one GPU, taken from the driver.

    Attributes:
        array: Its bytes.
        ptr: Where it begins.
    """

    def __init__(self, gpu: machine.Gpu, size: int) -> None:
        self.gpu, self.size = gpu, size
        raw = np.empty(size + UNIT, np.uint8)
        skip = -raw.ctypes.data % UNIT
        self.array = raw[skip : skip + size]
        self.ptr = int(self.array.ctypes.data)
        gpu.note_memory(self.ptr, size)

    def release(self) -> None:
        self.gpu.forget_memory(self.ptr)


class PooledMemory:
    """A block that goes back to its pool, for the stream that it was taken on, when it dies."""

    def __init__(self, block: Block, pool: MemoryPool, stream: int) -> None:
        self.block, self.pool, self.stream = block, pool, stream
        self.ptr, self.size, self.device_id = block.ptr, block.size, block.gpu.number

    def free(self) -> None:
        block, self.block = self.block, None  # type: ignore[assignment]
        if block is not None:
            self.pool.take_back(block, self.stream)

    def __del__(self, ending: Any = sys.is_finalizing) -> None:
        if not ending():
            self.free()


class MemoryPointer:
    """As ``cupy.cuda.MemoryPointer``."""

    def __init__(self, mem: Any, offset: int) -> None:
        self.mem, self._offset = mem, offset
        self.ptr, self.device_id = mem.ptr + offset, mem.device_id

    @property
    def device(self) -> Any:
        from gpu.streams import Device

        return Device(self.device_id)

    def __int__(self) -> int:
        return self.ptr

    def __add__(self, offset: int) -> MemoryPointer:
        return MemoryPointer(self.mem, self._offset + offset)

    def memset_async(self, value: int, size: int, stream: Any = None) -> None:
        at = bytes_at(self.ptr, size)
        queue_of(stream).add(lambda: at.fill(value))

    def copy_from_host_async(self, mem: int, size: int, stream: Any = None) -> None:
        """Queue a copy; memory that is not pinned is read before this returns."""
        queue = queue_of(stream)
        _not_captured(queue)
        there, here = bytes_at(self.ptr, size), bytes_at(int(mem), size)
        if not is_memory_pinned(int(mem)):
            here = here.copy()
        queue.add(lambda: np.copyto(there, here))

    def copy_to_host_async(self, mem: int, size: int, stream: Any = None) -> None:
        """Queue a copy, or make it at once where the memory is not pinned."""
        queue = queue_of(stream)
        _not_captured(queue)
        there, here = bytes_at(int(mem), size), bytes_at(self.ptr, size)
        queue.add(lambda: np.copyto(there, here))
        if not is_memory_pinned(int(mem)):
            queue.run()

    def copy_from_device_async(self, src: MemoryPointer, size: int, stream: Any = None) -> None:
        there, here = bytes_at(self.ptr, size), bytes_at(src.ptr, size)
        queue_of(stream).add(lambda: np.copyto(there, here))


def copy_pageable_async(there: MemoryPointer, host: np.ndarray, stream: Any) -> None:
    """Queue a copy of ordinary memory, which is read when the copy runs.

    GPUs do so that read the host's page tables. Memory that was freed by then is poison.
    """
    queue = queue_of(stream)
    _not_captured(queue)
    owner = host
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    alive = weakref.ref(owner)
    target, source = bytes_at(there.ptr, host.nbytes), bytes_at(host.ctypes.data, host.nbytes)

    def copy() -> None:
        if alive() is None:
            target.fill(POISON)
        else:
            np.copyto(target, source)

    queue.add(copy)


def _not_captured(queue: machine.Queue) -> None:
    if queue.capture is not None:
        raise RuntimeError(
            "the current stream is capturing, so synchronous API calls are disallowed"
        )


def bytes_at(address: int, size: int) -> np.ndarray:
    """Return memory that somebody else keeps. Shape: (size,)."""
    return np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)


def queue_of(stream: Any) -> machine.Queue:
    queue: machine.Queue = (get_current_stream() if stream is None else stream).queue
    return queue


class MemoryPool:
    """As ``cupy.cuda.MemoryPool``: it counts for the current device."""

    def __init__(self, allocator: Any = None) -> None:
        self._free: dict[tuple[int, int], dict[int, list[Block]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self._used: dict[int, int] = defaultdict(int)
        self._limits: dict[int, int] = defaultdict(int)
        self._ended = False

    def __del__(self, ending: Any = sys.is_finalizing) -> None:
        """Give idle blocks back to the driver; ``take_back`` gives it those that come later."""
        if ending():
            return
        with machine.lock:
            self._ended = True
            self._release_idle(self._free)

    def malloc(self, size: int) -> MemoryPointer:
        with machine.lock:
            return MemoryPointer(self._memory(size), 0)

    def _memory(self, size: int) -> PooledMemory:
        gpu, stream = machine.current(), get_current_stream()
        if stream.queue.capture is not None and self is default_pool and not allowed_in_capture:
            raise Misuse(
                "memory is allocated while a stream is captured, and a graph does not keep it: "
                "take it from a pool that lives as long as the graph"
            )
        size = -(-max(size, 1) // UNIT) * UNIT
        for hook in hooks.values():
            hook.malloc_preprocess(device_id=gpu.number, size=size, mem_size=size)
        idle = self._free[gpu.number, stream.ptr][size]
        block = idle.pop() if idle else self._new(gpu, size)
        self._used[gpu.number] += size
        stream.queue.add(lambda: block.array.fill(POISON))
        return PooledMemory(block, self, stream.ptr)

    def _new(self, gpu: machine.Gpu, size: int) -> Block:
        limit = self._limits[gpu.number]
        if gpu.allocated + size > gpu.total or (limit and self.total_bytes() + size > limit):
            self.free_all_blocks()
        if gpu.allocated + size > gpu.total or (limit and self.total_bytes() + size > limit):
            raise OutOfMemoryError(size, self.total_bytes(), limit)
        return Block(gpu, size)

    def take_back(self, block: Block, stream: int) -> None:
        with machine.lock:
            if self._ended:
                block.release()
                return
            self._free[block.gpu.number, stream][block.size].append(block)
            self._used[block.gpu.number] -= block.size

    def free_all_blocks(self, stream: Any = None) -> None:
        """Give idle blocks back to the driver, which waits for the GPU."""
        gpu = machine.current()
        with machine.lock:
            if not gpu.capturing:
                gpu.synchronize()
            self._release_idle(key for key in self._free if key[0] == gpu.number)

    def _release_idle(self, keys: Iterable[tuple[int, int]]) -> None:
        for sizes in [self._free[key] for key in keys]:
            for block in itertools.chain(*sizes.values()):
                block.release()
            sizes.clear()

    def n_free_blocks(self) -> int:
        return sum(len(blocks) for blocks in self._idle())

    def used_bytes(self) -> int:
        return self._used[machine.current().number]

    def free_bytes(self) -> int:
        return sum(block.size for blocks in self._idle() for block in blocks)

    def total_bytes(self) -> int:
        return self.used_bytes() + self.free_bytes()

    def get_limit(self) -> int:
        return self._limits[machine.current().number]

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        total = machine.current().total
        self._limits[machine.current().number] = (
            int(total * fraction) if fraction is not None else size or 0
        )

    def _idle(self) -> Iterator[list[Block]]:
        here = machine.current().number
        for (number, _), sizes in list(self._free.items()):
            if number == here:
                yield from sizes.values()


class MemoryHook:
    """As ``cupy.cuda.MemoryHook``, for what it calls before memory is handed out."""

    name = "MemoryHook"

    def __enter__(self) -> MemoryHook:
        hooks[self.name] = self
        return self

    def __exit__(self, *args: object) -> None:
        del hooks[self.name]

    def malloc_preprocess(self, **kwargs: Any) -> None:
        pass


hooks: dict[str, MemoryHook] = {}
allowed_in_capture = False
"""Whether memory may be allocated while a stream is captured, as cupy allows."""

default_pool = MemoryPool()


class _Allocator(threading.local):
    chosen: Callable[[int], MemoryPointer] | None = None


_allocator = _Allocator()


def alloc(size: int) -> MemoryPointer:
    """As ``cupy.cuda.alloc``."""
    return (_allocator.chosen or default_pool.malloc)(size)


@contextmanager
def using_allocator(allocator: Callable[[int], MemoryPointer] | None = None) -> Iterator[None]:
    """As ``cupy.cuda.using_allocator``."""
    before, _allocator.chosen = _allocator.chosen, allocator
    try:
        yield
    finally:
        _allocator.chosen = before


def get_default_memory_pool() -> MemoryPool:
    """As cupy's."""
    return default_pool
