"""Compile modules for this machine's processor, and keep the result on the disk.

The file's name is a digest of the module's text, of LLVM's version and of the processor, so that a
kept result is used where it would be made again, and nowhere else. Where the folder cannot be
written to, nothing is kept.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from demitasse.backends.kept import read_code, write_code
from demitasse.backends.kernels.language import team
from demitasse.config import settings

__all__ = ["Status", "compiled", "status"]

_lock = threading.RLock()
_known: dict[str, dict[str, int]] = {}

LEVEL = 2
NEEDED = ("avx2", "fma")
"""Without these, a kernel's multiplications and additions would be calls of a function."""


@dataclass(frozen=True)
class Status:
    """Whether kernels can be made at run time.

    Attributes:
        ready: Whether they can.
        version: Of LLVM's Python package.
        processor: As LLVM calls it.
        reason: Why they cannot.
    """

    ready: bool
    version: str = ""
    processor: str = ""
    reason: str = ""

    def __str__(self) -> str:
        if not self.ready:
            return f"no kernels are made at run time: {self.reason}"
        return f"llvmlite {self.version} for {self.processor}"


@cache
def _llvm() -> Any:
    """Return LLVM's Python binding, ready for this machine."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding


@cache
def _probed() -> Status:
    try:
        binding = _llvm()
    except (ImportError, OSError) as error:  # the package, or the library in it
        return Status(False, reason=f"llvmlite is not here ({error})")
    has = binding.get_host_cpu_features()
    lacking = [name for name in NEEDED if not has.get(name)]
    if lacking:
        return Status(False, reason=f"the processor has no {', '.join(lacking)}")
    return Status(True, version("llvmlite"), binding.get_host_cpu_name())


def status() -> Status:
    """Say whether kernels can be made at run time; or why not."""
    if not settings.get("jit"):
        return Status(False, reason="it was switched off")
    return _probed()


def compiled(name: str, write: Callable[[Any], None], *exports: str) -> dict[str, int]:
    """Return the addresses of a module's kernels; they live as long as the process.

    Args:
        name: Of the module; no other one of the process has it.
        write: Writes its kernels.
        exports: Those whose addresses are wanted.
    """
    from llvmlite import ir

    with _lock:
        if name not in _known:
            module = ir.Module(name)
            write(module)
            _dump(name, str(module))
            _known[name] = _linked(str(module), exports)
        return _known[name]


def _dump(name: str, text: str) -> None:
    """Write a module's LLVM text and its assembly where the setting ``kernel_dump`` says."""
    place = settings.get("kernel_dump")
    if not place:
        return
    machine = _machine()
    assembly = machine.emit_assembly(_optimised(text, machine))
    Path(place).mkdir(parents=True, exist_ok=True)
    Path(place, f"{name}.ll").write_text(text, encoding="utf-8")
    Path(place, f"{name}.s").write_text(assembly, encoding="utf-8")


def _features() -> str:
    # vectors of 512 bits stay whole where there are registers for them
    features: str = _llvm().get_host_cpu_features().flatten() + ",-prefer-256-bit"
    return features


def _machine() -> Any:
    binding = _llvm()
    return binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=_features(), opt=LEVEL, jit=True
    )


@cache
def _engine() -> Any:
    binding = _llvm()
    for function, address in team.functions().items():
        binding.add_symbol(function, address)
    return binding.create_mcjit_compiler(binding.parse_assembly(""), _machine())


def _linked(text: str, exports: tuple[str, ...]) -> dict[str, int]:
    engine = _engine()
    engine.add_object_file(_llvm().ObjectFileRef.from_data(_object(text)))
    engine.finalize_object()
    return {name: engine.get_function_address(name) for name in exports}


def _object(text: str) -> bytes:
    """Return a module's machine code, from the disk or made now."""
    binding = _llvm()
    processor = binding.get_host_cpu_name()
    about = (text, binding.llvm_version_info, processor, _features(), LEVEL)
    digest = hashlib.sha256(repr(about).encode()).hexdigest()
    name = f"{digest}.o"
    code = read_code(name)
    if code is None:
        code = _made(text)
        write_code(name, code)
    return code


def _made(text: str) -> bytes:
    """Return a module's machine code, made now."""
    machine = _machine()
    code: bytes = machine.emit_object(_optimised(text, machine))
    return code


def _optimised(text: str, machine: Any) -> Any:
    binding = _llvm()
    module = binding.parse_assembly(text)
    module.verify()
    # kernels are vectors and unrolled already
    options = binding.create_pipeline_tuning_options(speed_level=LEVEL)
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
    builder = binding.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return module
