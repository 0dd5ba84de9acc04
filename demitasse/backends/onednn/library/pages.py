"""Pages of a library's code that are in this process's memory, and need not be.

To load a library runs its initialisers, which lie all over its code and never run again; what the
system brings from the file with them is a quarter of oneDNN's, 11 MiB. To prepare primitives takes
as much again, to run them 2 MiB. The system brings a page of a file again when that is run.

Source: madvise(2), proc_pid_maps(5), proc_pid_pagemap(5).
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["leave"]

CODE = "r-xp"
IN_MEMORY, SWAPPED, OF_FILE = (np.uint64(1 << bit) for bit in (63, 62, 61))


def leave(function: Any) -> None:
    """Let go of the pages of a library's code, where they are as its file has them.

    Nothing happens where the system is not Linux, or does not say how its pages are.

    Args:
        function: One of its functions, as ctypes has it.
    """
    if sys.platform != "linux":
        return
    with suppress(OSError):
        first, last = _code_around(ctypes.cast(function, ctypes.c_void_p).value or 0)
        if first and _as_in_file(first, last):
            size = ctypes.c_size_t(last - first)
            ctypes.CDLL(None).madvise(ctypes.c_void_p(first), size, mmap.MADV_DONTNEED)


def _code_around(address: int) -> tuple[int, int]:
    """Return the first address of the code that lies around one, and the first behind; or 0, 0."""
    with Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as maps:
        for line in maps:
            area, rights = line.split(maxsplit=2)[:2]
            first, last = (int(number, 16) for number in area.split("-"))
            if first <= address < last and rights == CODE:
                return first, last
    return 0, 0


def _as_in_file(first: int, last: int) -> bool:
    """Return whether no page is this process's own, as one is that a debugger has written to."""
    pages = (last - first) // mmap.PAGESIZE
    with Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
        pagemap.seek(first // mmap.PAGESIZE * 8)
        found = np.frombuffer(pagemap.read(pages * 8), np.uint64)
    there = found & (IN_MEMORY | SWAPPED) != 0
    return len(found) == pages and bool(np.all(found[there] & OF_FILE != 0))
