"""Target processor of the kernels: architecture, instruction sets, vector width.

Code that differs between architectures is in this module: names of instructions, numbers of system
calls, fields of Linux's ``/proc/cpuinfo``.
"""

import ctypes
import os
import platform
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

X86_64, AARCH64 = "x86_64", "aarch64"


class Architecture(NamedTuple):
    """Properties of an architecture.

    Attributes:
        needed: Instruction sets that kernels need. Without fused multiply-add, a multiplication and
            addition would be a call of a function.
        code_fields: Fields of ``/proc/cpuinfo`` that decide which code LLVM generates.
        features: Extra features for LLVM.
        elf: Number of the architecture in ELF files.
        futex: Number of Linux's system call.
    """

    needed: tuple[str, ...]
    code_fields: tuple[str, ...]
    features: str
    elf: int
    futex: int


ARCHITECTURES = {
    X86_64: Architecture(
        ("avx2", "fma", "f16c"),
        ("vendor_id", "cpu family", "model", "model name", "stepping", "flags"),
        "-prefer-256-bit",  # vectors of 512 bits stay whole where there are registers for them
        62,
        202,
    ),
    AARCH64: Architecture(
        ("asimd",),
        ("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision",
         "Features"),
        "+reserve-x18",  # which belongs to the system on macOS and Windows
        183,
        98,
    ),
}  # fmt: skip
"""Architectures that kernels are compiled for."""

NAMES = {"x86_64": X86_64, "amd64": X86_64, "aarch64": AARCH64, "arm64": AARCH64}
"""Architecture by the lower-case name of the machine."""

LINUX, WINDOWS, MACOS = "linux", "win32", "darwin"


def system() -> str:
    """Return the operating system, as in ``sys.platform``."""
    return sys.platform


def triple() -> str:
    """Return LLVM's name of the target. Object files are ELF on every system.

    Only Windows on x86-64 passes arguments in other registers than Linux.
    """
    windows = is_x86() and system() == WINDOWS
    return f"{architecture()}-{'pc-windows-msvc-elf' if windows else 'unknown-linux-gnu'}"


def architecture() -> str:
    """Return the name of this machine's architecture; "" if no kernels are compiled for it."""
    return NAMES.get(platform.machine().lower(), "")


def is_x86() -> bool:
    """Return whether kernels are compiled for x86-64."""
    return architecture() == X86_64


CPUINFO = Path("/proc/cpuinfo")


@cache
def _processor_fields(machine: str) -> dict[str, str]:
    """Return Linux's fields of the first processor; {} on other systems.

    Under an emulator, the file describes another architecture. The result is then {}.
    """
    found: dict[str, str] = {}
    if system() != LINUX:
        return found
    try:
        with CPUINFO.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                name, colon, value = line.partition(":")
                if not colon:  # the end of the first processor
                    break
                found[name.strip()] = value.strip()
    except OSError:
        pass
    known = ARCHITECTURES.get(machine)
    return found if known and known.code_fields[-1] in found else {}


def processor_features() -> frozenset[str]:
    """Return the names of the processor's instruction sets, from the system or else from LLVM.

    Raises:
        ImportError, OSError: LLVM is needed and not installed.
    """
    machine = architecture()
    fields = _processor_fields(machine)
    if fields:
        return frozenset(fields[ARCHITECTURES[machine].code_fields[-1]].split())
    if machine == AARCH64:
        return frozenset(["asimd"])  # which every system requires
    from llvmlite import binding

    return frozenset(name for name, there in binding.get_host_cpu_features().items() if there)


def processor_name() -> str:
    """Return the processor's name; "" if unknown."""
    return _processor_fields(architecture()).get("model name", "")


def processor_signature() -> tuple[str, ...] | None:
    """Return the fields that identify this processor; None if unknown."""
    machine = architecture()
    fields = _processor_fields(machine)
    if not fields:
        return None
    return tuple(fields.get(name, "") for name in ARCHITECTURES[machine].code_fields)


WIDE = 16
"""Floats of a vector of AVX-512."""

AVX512 = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"})
"""Instruction sets of vectors of 16 floats."""

BF16 = "avx512_bf16", "avx512bf16"
"""Names of the instructions that multiply pairs of bfloat16, of Linux and of LLVM."""

MOST = "ONEDNN_MAX_CPU_ISA"
"""Environment variable, of oneDNN too: the widest instruction set that may be used."""

NARROWER = {"SSE41": 0, "AVX": 0, "AVX2": 8}
"""Floats of a vector up to an instruction set, for the first part of its name."""


def vector_width() -> int:
    """Return the floats of a vector on this processor; 0 if no kernel can be compiled.

    On x86-64, the environment variable of oneDNN limits the width.
    """
    machine, has = architecture(), frozenset[str]()
    if machine:
        with suppress(ImportError, OSError):
            has = processor_features()
    if not machine or not has.issuperset(ARCHITECTURES[machine].needed):
        return 0
    if machine == AARCH64:
        return 4
    wide = WIDE if has >= AVX512 else 8
    return min(wide, NARROWER.get(os.environ.get(MOST, "").upper().partition("_")[0], wide))


def extra_features() -> str:
    """Return the features for LLVM beside the processor's.

    With vectors of 8 floats, code must not use AVX-512's registers: its longer instructions cost
    up to 13 % of a product, and the limit would not show what a processor without AVX-512 does.
    """
    narrow = is_x86() and vector_width() < WIDE
    return ARCHITECTURES[architecture()].features + ",-avx512f" * narrow


WITHOUT_BF16 = {"AVX512_CORE", "AVX512_CORE_VNNI"}
"""Instruction sets of the environment variable that have vectors of 16 floats, without it."""


AMX = "amx_tile", "amx_bf16"
"""Linux's names of the instructions that multiply tiles of bfloat16."""

WITHOUT_AMX = WITHOUT_BF16 | {"AVX512_CORE_BF16", "AVX512_CORE_FP16", "AVX10_1_512"}
"""Instruction sets of the environment variable that have no tiles."""

ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA = 158, 0x1023, 18
"""Numbers of Linux on x86-64: the system call, the request, and the processor's state."""


@cache
def _may_use_tiles() -> bool:
    """Return whether Linux lets this process use AMX's registers, which needs a request."""
    if system() != LINUX or not processor_features().issuperset(AMX):
        return False
    refused: int = ctypes.CDLL(None).syscall(ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA)
    return not refused


def has_amx(width: int) -> bool:
    """Return whether kernels that may multiply pairs of bfloat16 may multiply tiles of them."""
    allowed = os.environ.get(MOST, "").upper() not in WITHOUT_AMX
    return has_bf16(width) and allowed and _may_use_tiles()


def has_bf16(width: int) -> bool:
    """Return whether kernels for vectors of ``width`` floats may multiply pairs of bfloat16."""
    allowed = os.environ.get(MOST, "").upper() not in WITHOUT_BF16
    return width == vector_width() == WIDE and allowed and bool(processor_features() & {*BF16})
