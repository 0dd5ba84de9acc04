"""Thread team of kernels, which also replaces GCC's OpenMP runtime in oneDNN's library.

oneDNN's primitives and demitasse's kernels divide their work into one part per thread and end after
the last part. GCC's OpenMP runtime assigns each part to a fixed thread. On busy cores, all threads
then wait for the thread without a core: milliseconds in an operation that takes microseconds.

In this team, threads take parts dynamically: a thread that ends a part takes the next free part. A
region waits only for running parts. The parts and their results are OpenMP's, bit for bit.
"""

import ctypes
import mmap
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from demitasse.backends.kernels.language import compiler, team
from demitasse.backends.kernels.language.linker import READ, WRITE, mapping, protect
from demitasse.backends.kernels.language.target import LINUX, X86_64, architecture, system

OPENMP_VARIABLES = ("GOMP_CPU_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND", *team.WAITING)
"""Environment variables that configure the OpenMP runtime's threads."""


def install(library: Any) -> str:
    """Run the parallel regions of a library, loaded by ctypes, on the team.

    Returns:
        Reason for keeping the OpenMP runtime's threads, which then run the kernels too; "" if the
        team is installed.
    """
    reason = obstacle() or _replace_imports(library)
    team.Library.runtime = team.openmp()
    team.Library.regions = bool(reason) and team.Library.runtime is not None
    return reason


def obstacle() -> str:
    """Return the reason against the team in oneDNN's library on this system; "" for none."""
    if system() != LINUX or architecture() != X86_64:
        return "it is written for Linux on x86-64"
    variables = [name for name in OPENMP_VARIABLES if name in os.environ]
    if variables:
        return f"{', '.join(variables)} configures OpenMP's threads"
    if not compiler.status().ready:
        return str(compiler.status())
    return "there is no OpenMP runtime" if team.openmp() is None else ""


def _replace_imports(library: Any) -> str:
    """Replace the OpenMP functions that a library imports; return the reason against it."""
    from demitasse.backends.kernels.team.runtime import HARMLESS, OURS  # needs llvmlite

    try:
        imports = Imports(library)
        openmp = ("GOMP_", "omp_", "__kmpc_")  # of GCC's runtime and LLVM's
        unknown = {name for name in imports.places if name.startswith(openmp)}
        unknown -= OURS.keys() | HARMLESS
        if unknown:
            return f"the library calls {', '.join(sorted(unknown))}"
        imports.replace({name: team.own_team()[name] for name in OURS})
    except (OSError, LookupError, AttributeError, MemoryError) as error:
        return repr(error)
    return ""


LINK_MAP = 2  # RTLD_DI_LINKMAP
STRINGS, SYMBOLS, ALL, ALL_BYTES, CALLS_BYTES, CALLS = 5, 6, 7, 8, 2, 23  # of the dynamic section
DATA, CALL = 6, 7  # R_X86_64_GLOB_DAT and R_X86_64_JUMP_SLOT
RELOCATION = np.dtype([("offset", "<u8"), ("kind", "<u4"), ("symbol", "<u4"), ("more", "<i8")])
SYMBOL_BYTES = 24


class _LinkMap(ctypes.Structure):
    _fields_ = (("base", ctypes.c_uint64), ("name", ctypes.c_char_p), ("dynamic", ctypes.c_uint64))


class Imports:
    """Functions that a library imports, on Linux for x86-64.

    Attributes:
        places: Addresses of the table entries of each function, by name.
    """

    def __init__(self, library: Any) -> None:
        found = ctypes.c_void_p()
        ask = ctypes.CDLL(None).dlinfo
        ask.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
        if ask(library._handle, LINK_MAP, ctypes.byref(found)) or not found.value:
            message = "dlinfo"
            raise OSError(message)
        entry = _LinkMap.from_address(found.value)
        self._base: int = entry.base
        self._dynamic, at = {}, entry.dynamic
        while tag := ctypes.c_int64.from_address(at).value:
            self._dynamic[tag] = ctypes.c_uint64.from_address(at + 8).value
            at += 16
        self.places: dict[str, list[int]] = {}
        for table, size in ((CALLS, CALLS_BYTES), (ALL, ALL_BYTES)):
            if table in self._dynamic:
                self._read(self._pointer(table), self._dynamic[size])

    def _pointer(self, tag: int) -> int:
        """Return an address of the dynamic section, which most loaders have relocated."""
        value = self._dynamic[tag]
        return value if value >= self._base else value + self._base

    def _read(self, table: int, size: int) -> None:
        rows = np.frombuffer(ctypes.string_at(table, size), RELOCATION)
        symbols, strings = self._pointer(SYMBOLS), self._pointer(STRINGS)
        for row in rows[(rows["kind"] == CALL) | (rows["kind"] == DATA)]:
            at = symbols + SYMBOL_BYTES * int(row["symbol"])
            name = ctypes.string_at(strings + ctypes.c_uint32.from_address(at).value).decode()
            self.places.setdefault(name, []).append(self._base + int(row["offset"]))

    def replace(self, functions: Mapping[str, int]) -> None:
        """Replace imported functions by those at the given addresses.

        Raises:
            OSError: A page cannot be made writable; no entry is changed.
        """
        new = {at: functions[name] for name in functions for at in self.places.get(name, ())}
        pages = {at & -mmap.PAGESIZE for at in new}
        pages = {page for page in pages if "w" not in mapping(page)[2]}
        for page in pages:
            protect(page, mmap.PAGESIZE, READ | WRITE)
        for at, address in new.items():
            ctypes.c_uint64.from_address(at).value = address
        for page in pages:  # as the loader left it
            protect(page, mmap.PAGESIZE, READ)
