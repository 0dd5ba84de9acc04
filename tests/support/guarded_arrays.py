"""Memory of numpy arrays between pages that must not be touched.

A kernel that reads or writes past the end of an array, or uses an array's memory after it was
freed, is killed by a signal at that instruction, instead of changing the memory of others. New
memory is filled with NaN, so that results show where memory is read before it was written.

Source of the interface: NumPy's enhancement proposal 49.
"""

import ctypes
import mmap
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

__all__ = ["guarded", "start"]

PAGE = mmap.PAGESIZE
LEAST = 2048
"""Bytes of the smallest array that is guarded."""

ALIGNMENT = 16
"""What an array's address is a multiple of, as malloc's."""

QUARANTINED = 8000
"""How many freed arrays keep their addresses."""

NONE, READ_WRITE = 0, mmap.PROT_READ | mmap.PROT_WRITE
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # the last is MAP_NORESERVE of Linux
DONT_NEED = 4  # MADV_DONTNEED
CAPSULE = b"mem_handler"
SET_HANDLER = 304  # index in the table of numpy's C API

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.madvise.argtypes = libc.mprotect.argtypes
libc.munmap.argtypes = libc.mprotect.argtypes[:2]
for function in ("malloc", "calloc", "realloc"):
    getattr(libc, function).restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.calloc.argtypes = [ctypes.c_size_t] * 2
libc.realloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

MALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
CALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
REALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class _Handler(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("ctx", ctypes.c_void_p),
        ("malloc", MALLOC),
        ("calloc", CALLOC),
        ("realloc", REALLOC),
        ("free", FREE),
    )


class _Guards:
    """Arrays that are guarded now: their addresses, and the pages that each lies in."""

    def __init__(self) -> None:
        self.live: dict[int, tuple[int, int, int]] = {}
        self.freed: deque[tuple[int, int]] = deque()
        self.at_start = False
        self.on = False

    def allocate(self, size: int) -> int | None:
        pages = -(-size // PAGE) * PAGE
        whole = pages + 2 * PAGE
        base = libc.mmap(None, whole, NONE, PRIVATE, -1, 0)
        if base in (None, ctypes.c_void_p(-1).value):
            return None
        if libc.mprotect(base + PAGE, pages, READ_WRITE):
            libc.munmap(base, whole)
            return None
        offset = 0 if self.at_start else (pages - size) // ALIGNMENT * ALIGNMENT
        address = base + PAGE + offset
        self.live[address] = base, whole, size
        return address

    def release(self, address: int) -> None:
        base, whole, _ = self.live.pop(address)
        libc.madvise(base, whole, DONT_NEED)
        libc.mprotect(base, whole, NONE)
        self.freed.append((base, whole))
        if len(self.freed) > QUARANTINED:
            libc.munmap(*self.freed.popleft())


_guards = _Guards()


@MALLOC
def _malloc(context: int, size: int) -> int | None:
    if size < LEAST or not _guards.on:
        return libc.malloc(max(size, 1))
    address = _guards.allocate(size)
    if address is not None:
        ctypes.memset(address, 0xFF, size)
    return address


@CALLOC
def _calloc(context: int, count: int, each: int) -> int | None:
    size = count * each
    if size < LEAST or not _guards.on:
        return libc.calloc(max(count, 1), max(each, 1))
    return _guards.allocate(size)


@REALLOC
def _realloc(context: int, address: int | None, size: int) -> int | None:
    if address not in _guards.live:
        return libc.realloc(address, max(size, 1))
    new = _malloc(None, size)
    if new is not None:
        ctypes.memmove(new, address, min(size, _guards.live[address][2]))
        _guards.release(address)
    return new


@FREE
def _free(context: int, address: int | None, size: int) -> None:
    if address in _guards.live:
        _guards.release(address)
    else:
        libc.free(address)


_handler = _Handler(b"guarded", 1, None, _malloc, _calloc, _realloc, _free)


def start(*, at_start: bool = False) -> None:
    """Let numpy ask here for the memory of all arrays that this thread makes from now on.

    Call it before the package is imported: large arrays then come from numpy, too.

    Args:
        at_start: Whether arrays begin at the begin of a page, so that what touches memory before
            an array is found; by default they end at the end of one.
    """
    if sys.platform != "linux":
        return
    if hasattr(mmap, "MADV_HUGEPAGE"):
        del mmap.MADV_HUGEPAGE  # the package takes large pages past numpy where it can
    api = ctypes.pythonapi
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    api.PyCapsule_New.restype = ctypes.py_object
    api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    table = api.PyCapsule_GetPointer(np._core._multiarray_umath._ARRAY_API, None)
    entries = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))
    set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(entries[SET_HANDLER])
    capsule = api.PyCapsule_New(ctypes.addressof(_handler), CAPSULE, None)
    set_handler(capsule)
    _guards.at_start = at_start


@contextmanager
def guarded() -> Iterator[None]:
    """Guard the arrays that are made in this block, where ``start`` was called."""
    before, _guards.on = _guards.on, True
    try:
        yield
    finally:
        _guards.on = before
