"""The kernels compile for a GPU: NVIDIA's run-time compiler needs neither a driver nor a GPU."""

import ctypes
import hashlib
import re
import sys
from functools import cache
from pathlib import Path

import pytest
from cuda_host import kept

from demitasse.atomic import atomic_write
from demitasse.backends.cupy.library.sources import FAMILIES, MOST_THREADS, options, source

ARCHITECTURE = "sm_90"


@cache
def nvrtc() -> ctypes.CDLL | None:
    """The compiler from NVIDIA's wheel, wherever that puts it; None where it is not installed."""
    folders = [Path(folder, "nvidia") for folder in sys.path if folder]
    found = [file for folder in folders for file in folder.glob("*/lib/libnvrtc.so.*")]
    return ctypes.CDLL(str(found[0])) if found else None


def compiled(text: str, flags: tuple[str, ...]) -> bytes:
    """Compile to machine code, unless that was done before.

    It takes a third of a second for each; what fails is compiled every time.
    """
    library = nvrtc()
    if library is None:
        pytest.skip("no NVRTC: pip install --group kernels")
    version = (ctypes.c_int(), ctypes.c_int())
    assert not library.nvrtcVersion(*map(ctypes.byref, version))
    about = (text, flags, ARCHITECTURE, [number.value for number in version])
    file = kept() / f"{hashlib.sha256(repr(about).encode()).hexdigest()}.cubin"
    if not file.exists():
        code = compiled_now(library, text, flags)
        with atomic_write(file) as target:
            target.write(code)
    return file.read_bytes()


def compiled_now(library: ctypes.CDLL, text: str, flags: tuple[str, ...]) -> bytes:
    """Compile to machine code; fails with the compiler's own words."""
    program = ctypes.c_void_p()
    assert not library.nvrtcCreateProgram(
        ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None
    )
    given = [flag.encode() for flag in (*flags, f"--gpu-architecture={ARCHITECTURE}")]
    status = library.nvrtcCompileProgram(
        program, len(given), (ctypes.c_char_p * len(given))(*given)
    )
    size = ctypes.c_size_t()
    assert not library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    assert not library.nvrtcGetProgramLog(program, log)
    assert status == 0, log.value.decode()
    assert not library.nvrtcGetCUBINSize(program, ctypes.byref(size))
    code = ctypes.create_string_buffer(size.value)
    assert not library.nvrtcGetCUBIN(program, code)
    assert not library.nvrtcDestroyProgram(ctypes.byref(program))
    return code.raw


def names(text: str) -> list[str]:
    """The kernels that a source defines."""
    return re.findall(r"^(?:KERNEL |UPDATE\()(\w+)", text, re.MULTILINE)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("wide", [False, True], ids=["32 bits", "64 bits"])
def test_a_family_compiles(family, dtype, wide):
    text = source(family)

    code = compiled(text, options(dtype, wide=wide))

    assert names(text)
    assert [name for name in names(text) if f".text.{name}\0".encode() not in code] == []


def test_faults_would_be_seen():
    with pytest.raises(AssertionError, match="expected a"):
        compiled(source("pool") + "KERNEL broken( {", options("float32", wide=False))


def test_the_sources_agree_on_the_size_of_a_block():
    assert f"#define MOST_THREADS {MOST_THREADS}\n" in source("conv")


def test_every_source_is_a_family():
    folder = Path(__file__).parents[2] / "demitasse" / "backends" / "cupy" / "kernels"

    assert {file.stem for file in folder.glob("*.cu")} == set(FAMILIES)
