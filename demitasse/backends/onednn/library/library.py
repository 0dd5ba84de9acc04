"""The shared library: its file, functions, status codes and code pages.

Search order: the setting ``onednn_library``, the folders of pip and conda, the user's folder, and
the system's loader. Any version 3 with a CPU runtime is accepted.
"""

import ctypes
import mmap
import os
import platform
import site
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from ctypes import POINTER, c_char_p, c_float, c_int, c_int64, c_size_t, c_uint, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from demitasse.backends.kernels import language as kernels
from demitasse.backends.kernels.language.linker import mapping
from demitasse.backends.kernels.language.target import AARCH64, architecture, is_x86, vector_width
from demitasse.backends.kernels.language.team import function_address, runtime_environment
from demitasse.backends.kernels.team import install
from demitasse.core.config import settings
from demitasse.errors import DeviceError, ErrorCode

NAMES = {"darwin": ("libdnnl.3.dylib", "libdnnl.dylib"), "win32": ("dnnl.dll",)}
"""File name of the library by system."""

UNIX_NAMES = ("libdnnl.so.3", "libdnnl.so.3.6")  # the latter is Debian's, from 3.6 on
FOLDERS = ("lib", "lib64", "Library/bin", "bin")
"""Library folders of an environment of pip or conda, on Unix and Windows."""

CONDA_FORGE = "conda install -c conda-forge onednn-cpu-omp"
PACKAGES = {
    ("Linux", "x86_64"): "python -m pip install onednn-cpu-gomp",
    ("Darwin", "arm64"): CONDA_FORGE,
    ("Darwin", "x86_64"): "python -m pip install onednn-cpu-iomp",
    ("Windows", "amd64"): "python -m pip install onednn-cpu-vcomp",
}
"""Command that installs the library, by system and machine."""

OPENMP = "libgomp.so.1"
"""OpenMP runtime that the library needs; small Linux images lack it."""

OPENMP_PACKAGES = "apt-get install libgomp1 (Debian, Ubuntu), or dnf install libgomp (Fedora)"

OPENMP_THREADS = 2
RUNTIMES = {1: "sequential", OPENMP_THREADS: "OpenMP", 4: "TBB", 8: "thread pool"}
"""Runtimes of the library that run on host memory in the calling thread's order."""

NO_OPENMP = "the library has no OpenMP threads"
SWITCHED_OFF = "it was switched off"
REFERENCE_CODE = "on aarch64, packages of oneDNN have reference code, slower than numpy"
"""Reason that the library is used on Linux, aarch64, only if the setting names its file."""

AVX2, AVX512 = 0x7, 0x27
"""The lowest number of an instruction set that has it."""

INSTRUCTION_SETS = {
    0x1: "SSE4.1",
    0x3: "AVX",
    AVX2: "AVX2",
    0xF: "AVX2 + VNNI",
    0x1F: "AVX2 + VNNI 2",
    AVX512: "AVX-512",
    0x67: "AVX-512 + VNNI",
    0xE7: "AVX-512 + BF16",
    0x1EF: "AVX-512 + FP16",
    0xFEF: "AVX-512 + AMX",
    0x1FEF: "AVX-512 + AMX FP16",
}


class Version(ctypes.Structure):
    """Struct of ``dnnl_version``."""

    _fields_ = (
        ("major", c_int),
        ("minor", c_int),
        ("patch", c_int),
        ("hash", c_char_p),
        ("cpu_runtime", c_uint),
        ("gpu_runtime", c_uint),
    )


@dataclass(frozen=True)
class Status:
    """True if oneDNN is used, and which.

    Attributes:
        loaded: Whether a library was found that can be used.
        path: Its file, as the loader was given it.
        version: Of the library, e.g. "3.2.0".
        threading: What its threads are made of, e.g. "OpenMP".
        instruction_set: The best that the processor has and the library uses.
        openmp: Why its operations run on OpenMP's threads, and wait for those that get no core;
            nothing where they run on our team.
        reason: Why there is none.
        advice: The command that installs one, or what it lacks, where that can be had.
    """

    loaded: bool
    path: str = ""
    version: str = ""
    threading: str = ""
    instruction_set: str = ""
    openmp: str = ""
    reason: str = ""
    advice: str = ""

    @property
    def slow(self) -> str:
        """Return advice where the library is missing, or an empty string."""
        alone = kernels_alone()
        if self.loaded or self.reason == SWITCHED_OFF or (alone and not self.advice):
            return ""
        mend = f"; to have it: {self.advice}" if self.advice else ""
        code = "kernels of its own and numpy" if alone else "numpy alone"
        return f"slow path: device 'cpu' computes with {code}, for {self}{mend}"

    def __str__(self) -> str:
        if not self.loaded:
            return f"oneDNN is not used: {self.reason}"
        return (
            f"oneDNN {self.version} ({self.threading} threads, {self.instruction_set}) "
            f"from {self.path}"
        )


def kernels_alone() -> bool:
    """Return whether ``Device("cpu")`` runs kernels of its own without the library."""
    return kernels.status().ready and vector_width() > 0


def load() -> Any:
    """Return the library with its functions declared, or None where there is none."""
    with _loading:
        return _load_first()[0]


def status() -> Status:
    """Return the library's status on ``Device("cpu")``: its version, or why it is not used."""
    with _loading:
        return _load_first()[1]


_loading = threading.RLock()
"""Held by the thread that loads the library and exchanges its calls, which happens once."""


@cache
def _load_first() -> tuple[Any, Status]:
    refused = []
    for place in _candidate_files():
        try:
            with runtime_environment():
                library = ctypes.CDLL(place)
            library.dnnl_version.restype, library.dnnl_version.argtypes = POINTER(Version), []
            version: Version = library.dnnl_version().contents
            if version.major != 3:
                refused.append(f"{place} is version {version.major}, 3 is needed")
                continue
            if version.cpu_runtime not in RUNTIMES:
                known = ", ".join(RUNTIMES.values())
                refused.append(f"{place} has runtime {version.cpu_runtime}, not one of {known}")
                continue
            declare(library)
        except (OSError, AttributeError) as error:
            refused.append(f"{place}: {error}")
            continue
        team = install(library) if version.cpu_runtime == OPENMP_THREADS else NO_OPENMP
        found = _describe(library, version, place, team)
        drop_code_pages(library.dnnl_version)
        return library, found
    if not refused:
        named = settings.get("onednn_library")
        return None, Status(False, reason=SWITCHED_OFF if named else REFERENCE_CODE)
    reason = "; ".join(refused)
    return None, Status(False, reason=reason, advice=_advice(reason))


def _advice(reason: str) -> str:
    """Return what to install, or nothing where there is nothing to be had."""
    if f"{OPENMP}: cannot open" in reason:
        return OPENMP_PACKAGES
    return PACKAGES.get((platform.system(), platform.machine().lower()), "")


def _candidate_files() -> Iterator[str]:
    """Yield where the library may be, most wanted first."""
    wanted = settings.get("onednn_library")
    if wanted:
        if wanted != "none":
            yield str(wanted)
        return
    if (platform.system(), architecture()) == ("Linux", AARCH64):
        return
    names = NAMES.get(sys.platform, UNIX_NAMES)
    seen = set()
    for environment in _environments():
        if environment in seen:
            continue
        seen.add(environment)
        for folder in FOLDERS:
            for name in names:
                file = Path(environment, folder, name)
                if file.is_file():
                    yield str(file)
    yield from names


def _environments() -> Iterator[str]:
    """Yield the folders below which installers put libraries, some more than once."""
    yield from (sys.prefix, sys.base_prefix)
    if site.ENABLE_USER_SITE:
        yield site.getuserbase()  # of `pip install --user`

    import sysconfig  # takes a moment, and is seldom come to

    yield sysconfig.get_path("data")  # /usr/local, where Debian's own Python has /usr as its prefix


def instruction_set(library: Any) -> int:
    """Return the code of the instruction set that the library uses; 0 on other machines than x86.

    There, the library has codes of its own for the same numbers.
    """
    if not is_x86():
        return 0
    return int(library.dnnl_get_effective_cpu_isa())


def _describe(library: Any, version: Version, place: str, openmp: str) -> Status:
    isa = instruction_set(library)
    known = INSTRUCTION_SETS.get(isa, f"instruction set {isa:#x}" if isa else platform.machine())
    return Status(
        loaded=True,
        path=os.path.realpath(place) if os.path.sep in place else place,
        version=f"{version.major}.{version.minor}.{version.patch}",
        threading=RUNTIMES[version.cpu_runtime],
        instruction_set=known,
        openmp=openmp,
    )


_PD = POINTER(c_void_p)  # receives a handle
_DIMS = POINTER(c_int64)
_MD = c_void_p

SIGNATURES: dict[str, list[Any]] = {
    "dnnl_engine_create": [_PD, c_int, c_size_t],
    "dnnl_stream_create": [_PD, c_void_p, c_uint],
    "dnnl_memory_desc_create_with_strides": [_PD, c_int, _DIMS, c_int, _DIMS],
    "dnnl_memory_desc_create_with_tag": [_PD, c_int, _DIMS, c_int, c_int],
    "dnnl_memory_desc_create_submemory": [_PD, _MD, _DIMS, _DIMS],
    "dnnl_memory_desc_clone": [_PD, _MD],
    "dnnl_memory_desc_destroy": [_MD],
    "dnnl_memory_desc_query": [_MD, c_int, c_void_p],
    "dnnl_memory_create": [_PD, _MD, c_void_p, c_void_p],
    "dnnl_memory_get_memory_desc": [c_void_p, _PD],
    "dnnl_memory_set_data_handle": [c_void_p, c_void_p],
    "dnnl_memory_destroy": [c_void_p],
    "dnnl_primitive_attr_create": [_PD],
    "dnnl_primitive_attr_destroy": [c_void_p],
    "dnnl_primitive_attr_set_scratchpad_mode": [c_void_p, c_int],
    "dnnl_primitive_attr_set_post_ops": [c_void_p, c_void_p],
    "dnnl_post_ops_create": [_PD],
    "dnnl_post_ops_destroy": [c_void_p],
    "dnnl_post_ops_append_binary": [c_void_p, c_int, _MD],
    "dnnl_post_ops_append_sum": [c_void_p, c_float, c_int, c_int],
    "dnnl_post_ops_append_eltwise": [c_void_p, c_int, c_float, c_float],
    "dnnl_post_ops_append_prelu": [c_void_p, c_int],
    "dnnl_primitive_create": [_PD, c_void_p],
    "dnnl_primitive_destroy": [c_void_p],
    "dnnl_primitive_desc_destroy": [c_void_p],
    "dnnl_primitive_desc_query": [c_void_p, c_int, c_int, c_void_p],
    "dnnl_primitive_execute": [c_void_p, c_void_p, c_int, c_void_p],
    "dnnl_reorder_primitive_desc_create": [_PD, _MD, c_void_p, _MD, c_void_p, c_void_p],
}
"""Functions that return a status."""

PRIMITIVES: dict[str, list[Any]] = {
    "convolution_forward": [c_int, c_int, *[_MD] * 4, *[_DIMS] * 4],
    "convolution_backward_data": [c_int, *[_MD] * 3, *[_DIMS] * 4, c_void_p],
    "convolution_backward_weights": [c_int, *[_MD] * 4, *[_DIMS] * 4, c_void_p],
    "deconvolution_forward": [c_int, c_int, *[_MD] * 4, *[_DIMS] * 4],
    "inner_product_forward": [c_int, *[_MD] * 4],
    "inner_product_backward_data": [*[_MD] * 3, c_void_p],
    "inner_product_backward_weights": [*[_MD] * 4, c_void_p],
    "matmul": [_MD] * 4,
    "prelu_forward": [c_int, *[_MD] * 3],
    "prelu_backward": [*[_MD] * 5, c_void_p],
    "batch_normalization_forward": [c_int, _MD, _MD, c_float, c_uint],
    "batch_normalization_backward": [c_int, *[_MD] * 3, c_float, c_uint, c_void_p],
    "binary": [c_int, *[_MD] * 3],
    "concat": [_MD, c_int, c_int, POINTER(c_void_p)],
    "sum": [_MD, c_int, POINTER(c_float), POINTER(c_void_p)],
}
"""Arguments of the functions that describe a primitive, between the engine and the attributes."""


def declare(library: Any) -> None:
    """Tell ctypes what the functions take and return.

    Raises:
        AttributeError: The library lacks one of them.
    """
    primitives = {
        f"dnnl_{name}_primitive_desc_create": [_PD, c_void_p, *arguments, c_void_p]
        for name, arguments in PRIMITIVES.items()
    }
    for name, arguments in (SIGNATURES | primitives).items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, c_int
    library.dnnl_memory_desc_get_size.argtypes = [_MD]
    library.dnnl_memory_desc_get_size.restype = c_size_t
    library.dnnl_primitive_desc_query_md.argtypes = [c_void_p, c_int, c_int]
    library.dnnl_primitive_desc_query_md.restype = c_void_p
    library.dnnl_get_effective_cpu_isa.restype = c_int


STATUSES = {
    1: "out of memory",
    2: "invalid arguments",
    3: "not implemented",
    4: "no further implementation",
    5: "an error while it ran",
    6: "not required",
}


def failure(status: int) -> str:
    """Return the text of a status other than 0."""
    return STATUSES.get(status, f"status {status}")


def check(status: int) -> None:
    """Raise where a call failed.

    Raises:
        DeviceError: ``status`` is not 0.
    """
    if status:
        message = f"oneDNN failed: {failure(status)}"
        raise DeviceError(message, code=ErrorCode.FAILED, library="oneDNN", status=status)


def create(function: Callable[..., int], *arguments: Any) -> int:
    """Return the handle that one of the library's functions makes.

    Raises:
        DeviceError: It fails.
    """
    handle = c_void_p()
    check(function(ctypes.byref(handle), *arguments))
    return handle.value or 0


CODE = "r-xp"
IN_MEMORY, SWAPPED, OF_FILE = (np.uint64(1 << bit) for bit in (63, 62, 61))


def drop_code_pages(function: Any) -> None:
    """Let go of the pages of a library's code, where they are as its file has them.

    Nothing happens where the system is not Linux, or does not say how its pages are.
    """
    if sys.platform != "linux":
        return
    with suppress(OSError):
        first, last, rights = mapping(function_address(function))
        if rights == CODE and _as_in_file(first, last):
            size = ctypes.c_size_t(last - first)
            ctypes.CDLL(None).madvise(ctypes.c_void_p(first), size, mmap.MADV_DONTNEED)


def _as_in_file(first: int, last: int) -> bool:
    """Return whether no page is this process's own, as one is that a debugger has written to."""
    pages = (last - first) // mmap.PAGESIZE
    with Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
        pagemap.seek(first // mmap.PAGESIZE * 8)
        found = np.frombuffer(pagemap.read(pages * 8), np.uint64)
    there = found & (IN_MEMORY | SWAPPED) != 0
    return len(found) == pages and bool(np.all(found[there] & OF_FILE != 0))
