"""Find oneDNN's shared library.

Looked for in this order: the setting ``onednn_library``, where pip and conda put it beside Python
or under the user's own folder, and what the system's loader knows. Any version 3 will do whose
threads are the processor's.
"""

from __future__ import annotations

import ctypes
import os
import platform
import site
import sys
from collections.abc import Iterator
from ctypes import POINTER, c_char_p, c_int, c_uint
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from demitasse.backends.kernels.language.team import bounded_spinning
from demitasse.backends.kernels.team import install
from demitasse.backends.onednn.library import pages
from demitasse.backends.onednn.library.signatures import declare
from demitasse.core.config import settings

__all__ = ["AVX2", "AVX512", "Status", "load", "status"]

NAMES = {
    "darwin": ("libdnnl.3.dylib", "libdnnl.dylib"),
    "win32": ("dnnl.dll",),
}
"""File name of the library by system."""

UNIX_NAMES = ("libdnnl.so.3", "libdnnl.so.3.6")  # the latter is Debian's, from 3.6 on
FOLDERS = ("lib", "lib64", "Library/bin", "bin")
"""Library folders of an environment of pip or conda, on Unix and Windows."""

CONDA_FORGE = "conda install -c conda-forge onednn-cpu-omp"
PACKAGES = {
    ("Linux", "x86_64"): "python -m pip install onednn-cpu-gomp",
    ("Linux", "aarch64"): f"{CONDA_FORGE}; or Debian's package libdnnl3.6",
    ("Darwin", "arm64"): CONDA_FORGE,
    ("Darwin", "x86_64"): "python -m pip install onednn-cpu-iomp",
    ("Windows", "amd64"): "python -m pip install onednn-cpu-vcomp",
}
"""Command that installs the library, by system and machine."""

OPENMP = "libgomp.so.1"
"""OpenMP runtime that the library needs; small Linux images lack it."""

OPENMP_PACKAGES = "apt-get install libgomp1 (Debian, Ubuntu), or dnf install libgomp (Fedora)"

OPENMP_THREADS, SYCL = 2, 256
RUNTIMES = {
    0: "none", 1: "sequential", OPENMP_THREADS: "OpenMP", 4: "TBB", 8: "thread pool", SYCL: "SYCL",
}  # fmt: skip
NO_OPENMP = "the library has no OpenMP threads"
SWITCHED_OFF = "it was switched off"
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
        if self.loaded or self.reason == SWITCHED_OFF:
            return ""
        mend = f"; to have it: {self.advice}" if self.advice else ""
        return f"slow path: device 'cpu' computes with numpy alone, for {self}{mend}"

    def __str__(self) -> str:
        if not self.loaded:
            return f"oneDNN is not used: {self.reason}"
        return (
            f"oneDNN {self.version} ({self.threading} threads, {self.instruction_set}) "
            f"from {self.path}"
        )


def load() -> Any:
    """Return the library with its functions declared, or None where there is none."""
    return _found()[0]


def status() -> Status:
    """Say whether oneDNN is used on ``Device("cpu")``, and which; or why not."""
    return _found()[1]


@cache
def _found() -> tuple[Any, Status]:
    refused = []
    for place in _places():
        try:
            with bounded_spinning():
                library = ctypes.CDLL(place)
            version = _version(library)
            if version.major != 3:
                refused.append(f"{place} is version {version.major}, 3 is needed")
                continue
            if version.cpu_runtime == SYCL:
                refused.append(f"{place} computes through SYCL, which is not what is needed")
                continue
            declare(library)
        except (OSError, AttributeError) as error:
            refused.append(f"{place}: {error}")
            continue
        team = install(library) if version.cpu_runtime == OPENMP_THREADS else NO_OPENMP
        found = _describe(library, version, place, team)
        pages.leave(library.dnnl_version)
        return library, found
    if not refused:
        return None, Status(False, reason=SWITCHED_OFF)
    reason = "; ".join(refused)
    return None, Status(False, reason=reason, advice=_advice(reason))


def _advice(reason: str) -> str:
    """Return what to install, or nothing where there is nothing to be had."""
    if f"{OPENMP}: cannot open" in reason:
        return OPENMP_PACKAGES
    return PACKAGES.get((platform.system(), platform.machine().lower()), "")


def _places() -> Iterator[str]:
    """Yield where the library may be, most wanted first."""
    wanted = settings.get("onednn_library")
    if wanted:
        if wanted != "none":
            yield str(wanted)
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


def _version(library: Any) -> Version:
    library.dnnl_version.restype = POINTER(Version)
    library.dnnl_version.argtypes = []
    version: Version = library.dnnl_version().contents
    return version


def _describe(library: Any, version: Version, place: str, openmp: str) -> Status:
    runtime, isa = version.cpu_runtime, library.dnnl_get_effective_cpu_isa()
    return Status(
        loaded=True,
        path=os.path.realpath(place) if os.path.sep in place else place,
        version=f"{version.major}.{version.minor}.{version.patch}",
        threading=RUNTIMES.get(runtime, f"runtime {runtime}"),
        instruction_set=INSTRUCTION_SETS.get(isa, f"instruction set {isa:#x}"),
        openmp=openmp,
    )
