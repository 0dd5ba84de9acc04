"""The kernels' sources, compiled by g++ and run on the host: the whole grid, every thread.

DEMITASSE_KERNEL_FLAGS goes to g++ as well.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent


def has_compiler() -> bool:
    return shutil.which("g++") is not None


@cache
def kept() -> Path:
    """A folder for what is compiled, kept between runs, told apart by its sources."""
    folder = Path(tempfile.gettempdir()) / "demitasse-host-kernels"
    folder.mkdir(exist_ok=True)
    return folder


def _extra() -> list[str]:
    return shlex.split(os.environ.get("DEMITASSE_KERNEL_FLAGS", ""))


def library(text: str, *flags: str) -> Path:
    """Compile C++ to a shared library, unless that was done before.

    Raises:
        subprocess.CalledProcessError: It does not compile; ``stderr`` says why.
    """
    name = hashlib.sha256("\0".join((text, *flags, *_extra())).encode()).hexdigest()[:24]
    file = kept() / f"{name}.so"
    if not file.exists():
        with tempfile.TemporaryDirectory(dir=kept()) as folder:
            code, made = Path(folder, "kernels.cpp"), Path(folder, "kernels.so")
            code.write_text(text)
            warnings = ["-Wall", "-Wextra", "-Wno-unused-function", "-Wno-clobbered", "-Werror"]
            # a fortified longjmp, Ubuntu's default, ends the process where threads are fibres
            plain = "-U_FORTIFY_SOURCE"
            command = ["g++", "-O2", "-shared", "-fPIC", plain, *warnings, *flags, *_extra()]
            _run([*command, "-o", str(made), str(code)])
            made.replace(file)  # at once: other processes never load a part of it
    return file


def _run(command: list[str], given: str | None = None) -> str:
    done = subprocess.run(command, input=given, check=True, capture_output=True, text=True)
    return done.stdout


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel.

    Attributes:
        pointer: Whether it is one; the rest is of what it points to.
        kind: "f", "i", "u" or "b" as in numpy; "V" for others.
        size: Bytes.
        alignment: Bytes.
    """

    pointer: bool
    constant: bool
    kind: str
    size: int
    alignment: int

    def __str__(self) -> str:
        return f"{self.kind}{self.size}{'*' * self.pointer}"


class _Launch(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("threads", ctypes.c_uint * 3),
        ("order", ctypes.c_int),
    )


class Kernels:
    """The kernels of one source text.

    Args:
        text: The source.
        flags: Compiler options, as for NVRTC.
    """

    def __init__(self, text: str, flags: Sequence[str]) -> None:
        self.names = _names(text, tuple(flags))
        calls = "\n".join(f"KERNEL_OF_THE_HOST({name})" for name in self.names)
        shim = (HERE / "device.h").read_text()
        self._library = ctypes.CDLL(
            str(library(f'{shim}\n#line 1 "kernels.cu"\n{text}\n{calls}\n', *flags))
        )
        self._signatures: dict[str, list[Parameter]] = {}
        self._launches: dict[str, Any] = {}

    def signature(self, name: str) -> list[Parameter]:
        if name not in self._signatures:
            function = self._library[f"signature_of_{name}"]
            function.restype = ctypes.c_char_p
            lines = [line.split() for line in function().decode().splitlines()]
            self._signatures[name] = [
                Parameter(p == "1", c == "1", kind, int(size), int(alignment))
                for p, c, kind, size, alignment in lines
            ]
        return self._signatures[name]

    def run(
        self,
        name: str,
        grid: tuple[int, int, int],
        threads: tuple[int, int, int],
        values: Sequence[np.ndarray],
        order: int = 0,
    ) -> None:
        """Run a kernel.

        Args:
            name: Which.
            grid: Blocks.
            threads: Threads of a block.
            values: Its arguments, each an array of one value.
            order: 0 lets threads and blocks run as they are numbered, 1 the other way round,
                other numbers shuffle them.

        Raises:
            AssertionError: Some threads of a block did not come to a barrier.
        """
        pointers = (ctypes.c_void_p * max(1, len(values)))(*(v.ctypes.data for v in values))
        how = _Launch((ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*threads), order)
        trouble = ctypes.create_string_buffer(200)
        if name not in self._launches:  # finding it in the library takes longer than a launch
            self._launches[name] = self._library[f"launch_of_{name}"]
        if self._launches[name](ctypes.byref(how), pointers, trouble):
            message = f"{name}: {trouble.value.decode()}"
            raise AssertionError(message)


@cache
def _names(text: str, flags: tuple[str, ...]) -> list[str]:
    key = hashlib.sha256("\0".join(("names", text, *flags)).encode()).hexdigest()[:24]
    file = kept() / f"{key}.txt"
    if not file.exists():
        bare = _run(["g++", "-E", "-P", "-x", "c++", *flags, "-"], text)
        found = re.findall(
            r'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)', bare
        )
        part = file.with_suffix(f".{os.getpid()}")
        part.write_text("\n".join(found))
        part.replace(file)
    return file.read_text().split()


@cache
def kernels(text: str, flags: tuple[str, ...]) -> Kernels:
    """Return the kernels of a source, compiled once."""
    return Kernels(text, flags)
