"""NVIDIA's run-time compiler, which needs neither a driver nor a GPU."""

import ctypes
import hashlib
import sys
from functools import cache
from pathlib import Path

import pytest
from gpu.host import kept

from demitasse.core.atomic import atomic_write

ALWAYS = ("-ftz=true", "--device-as-default-execution-space")
"""What cupy adds to the options of every kernel."""


@cache
def nvrtc() -> ctypes.CDLL | None:
    """The compiler from NVIDIA's wheel, wherever that puts it; None where it is not installed."""
    folders = [Path(folder, "nvidia") for folder in sys.path if folder]
    found = [file for folder in folders for file in folder.glob("*/lib/libnvrtc.so.*")]
    return ctypes.CDLL(str(found[0])) if found else None


def machine_code(text: str, flags: tuple[str, ...], architecture: str) -> bytes:
    """Compile for a GPU, "sm_90" say."""
    return _kept(text, (*flags, f"--gpu-architecture={architecture}"), "CUBIN")


def portable_code(text: str, flags: tuple[str, ...]) -> str:
    """Compile to NVIDIA's portable instructions, which can be read."""
    return _kept(text, (*flags, "--gpu-architecture=compute_90"), "PTX").decode()


def _kept(text: str, flags: tuple[str, ...], kind: str) -> bytes:
    """Compile, unless that was done before.

    It takes a third of a second for each; what fails is compiled every time.
    """
    library = nvrtc()
    if library is None:
        pytest.skip("no NVRTC: pip install --group kernels")
    version = (ctypes.c_int(), ctypes.c_int())
    assert not library.nvrtcVersion(*map(ctypes.byref, version))
    about = (text, flags, kind, ALWAYS, [number.value for number in version])
    file = kept() / f"{hashlib.sha256(repr(about).encode()).hexdigest()}.{kind.lower()}"
    if not file.exists():
        code = _compiled(library, text, (*flags, *ALWAYS), kind)
        with atomic_write(file) as target:
            target.write(code)
    return file.read_bytes()


def _compiled(library: ctypes.CDLL, text: str, flags: tuple[str, ...], kind: str) -> bytes:
    """Compile; fails with the compiler's own words."""
    program = ctypes.c_void_p()
    assert not library.nvrtcCreateProgram(
        ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None
    )
    given = [flag.encode() for flag in flags]
    status = library.nvrtcCompileProgram(
        program, len(given), (ctypes.c_char_p * len(given))(*given)
    )
    size = ctypes.c_size_t()
    assert not library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    assert not library.nvrtcGetProgramLog(program, log)
    assert status == 0, log.value.decode()
    assert not getattr(library, f"nvrtcGet{kind}Size")(program, ctypes.byref(size))
    code = ctypes.create_string_buffer(size.value)
    assert not getattr(library, f"nvrtcGet{kind}")(program, code)
    assert not library.nvrtcDestroyProgram(ctypes.byref(program))
    return code.raw
