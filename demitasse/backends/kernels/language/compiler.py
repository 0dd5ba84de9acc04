"""Compile modules for this machine's processor, and keep the result on the disk.

A cached file's name is a digest of the module's cache key, LLVM's version and the target.
Without write access to the folder, nothing is cached. Cached code is linked without LLVM if
possible: a process that compiles nothing neither loads LLVM's library nor writes the module's text.
"""

import ctypes
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from demitasse.backends.kernel_cache import read_code, write_code
from demitasse.backends.kernels.language import target
from demitasse.backends.kernels.language.instructions import Module
from demitasse.backends.kernels.language.linker import link
from demitasse.core.config import settings
from demitasse.core.hashing import digest
from demitasse.core.host import cores
from demitasse.core.threads import Pool, Uninterrupted
from demitasse.errors import DeviceError

LEVEL = 2


@dataclass(frozen=True)
class Status:
    """Support for compiling kernels at run time.

    Attributes:
        ready: True if kernels can be compiled.
        version: Version of llvmlite.
        reason: Reason that no kernel can be compiled; "" if ``ready``.
    """

    ready: bool
    version: str = ""
    reason: str = ""

    @property
    def processor(self) -> str:
        """Name of the processor, from Linux or else from LLVM."""
        if not self.ready:
            return ""
        return target.processor_name() or str(_llvm().get_host_cpu_name())

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
    machine = target.architecture()
    if not machine:
        known = ", ".join(target.ARCHITECTURES)
        reason = f"kernels are made for {known}, not {platform.machine()}"
        return Status(False, reason=reason)
    try:
        if find_spec("llvmlite") is None:
            return Status(False, reason="llvmlite is not here")
        import llvmlite

        has = target.processor_features()
    except (ImportError, OSError) as error:  # the package, or the library in it
        return Status(False, reason=f"llvmlite is not here ({error})")
    lacking = [name for name in target.ARCHITECTURES[machine].needed if name not in has]
    if lacking:
        return Status(False, reason=f"the processor has no {', '.join(lacking)}")
    reason = "" if target.system() == target.LINUX else _trial()
    return Status(not reason, llvmlite.__version__, reason)


TRIAL = """
import sys
sys.path[:] = {}
import numpy as np
from demitasse.backends.kernels.elementwise import Elementwise
from demitasse.backends.kernels.language.target import vector_width
from demitasse.backends.kernels.tuning import Tuning
x = np.linspace(-9, 9, 1 << 16, dtype=np.float32)
y = np.zeros_like(x)
Elementwise([("tanh", ())], 1, x.size, Tuning(vector_width(), threads=2))(x, y)
assert np.allclose(y, np.tanh(x), atol=1e-5), "a kernel computes wrong numbers"
"""
"""Program that runs a kernel on two threads."""


def _trial() -> str:
    """Return why kernels cannot run on this system; "" if they can.

    Kernels have run on Linux alone, so one is tried in a process of its own, which a fault may end.
    A success is stored with the compiled kernels.
    """
    name = f"{_digest(TRIAL + _sources_digest())}.trial"
    if read_code(name) is not None:
        return ""
    command = [sys.executable, "-P", "-c", TRIAL.format(sys.path)]
    try:
        subprocess.run(
            command, env={**os.environ, "DEMITASSE_JIT": "0"}, capture_output=True, text=True,
            timeout=120, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        last = str(getattr(error, "stderr", "") or "").strip().rpartition("\n")[2]
        return f"the first kernel failed in a process that tried it: {last or error}"
    write_code(name, b"")
    return ""


def status() -> Status:
    """Return whether kernels can be compiled at run time, or the reason against it."""
    if not settings.get_often("jit"):
        return Status(False, reason="it was switched off")
    return _probed()


@cache
def has_kernels() -> bool:
    """Return whether kernels can be compiled, as at the first call: for callers of each image."""
    return status().ready


lock = threading.RLock()
"""Lock of all compilations; a fork acquires it first, or a child would wait for it forever."""
_known: dict[str, int] = {}

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
    )


def compiled(name: str, write: Callable[[Module], None]) -> int:
    """Return the address of a kernel, which stays valid until the process ends.

    The name of the kernel is unique in the process; ``write`` writes its module.
    """
    with lock, Uninterrupted():  # Ctrl-C would leave llvmlite's lock held, or end in a __del__
        if name not in _known:
            _known[name] = linked(name, write, [name], _stack_probe())[name]
        return _known[name]


@cache
def _stack_probe() -> dict[str, int]:
    """Return the address of the function that touches the pages of large stack frames."""
    if target.system() != target.WINDOWS:
        return {}
    probe = ctypes.CDLL("ntdll")["__chkstk"]
    return {"__chkstk": ctypes.cast(probe, ctypes.c_void_p).value or 0}


def compile_all(sources: Mapping[str, Callable[[Module], None]], threads: int) -> None:
    """Compile kernels on several threads, so that ``compiled`` knows their addresses.

    Without a second thread, or after an error, kernels are compiled when they first run.
    """
    with lock, suppress(DeviceError, MemoryError, OSError):
        missing = {name: write for name, write in sources.items() if name not in _known}
        stored = {name: _stored_code(name, write) for name, write in missing.items()}
        codes = {name: code for name, code in stored.items() if code is not None}
        cold = {name: write for name, write in missing.items() if name not in codes}
        if len(cold) > 1 < threads:
            with Pool(min(threads, cores(), len(cold)), "demitasse-compile") as pool:
                codes |= zip(
                    cold, pool.map(_compiled_code, cold.keys(), cold.values()), strict=True
                )
        for name, code in codes.items():
            _known[name] = link(code, [name], _stack_probe())[name]


def linked(
    name: str, write: Callable[[Module], None], exports: Sequence[str], outside: Mapping[str, int]
) -> dict[str, int]:
    """Return the addresses of a module's functions, linked against the addresses ``outside``."""
    return link(machine_code(name, write), exports, outside)


def machine_code(name: str, write: Callable[[Module], None]) -> bytes:
    """Return a module's machine code, from the cache or compiled now."""
    stored = _stored_code(name, write)
    return _compiled_code(name, write) if stored is None else stored


def _stored_code(name: str, write: Callable[[Module], None]) -> bytes | None:
    """Return a module's machine code from the cache; None if it is to be compiled."""
    return None if settings.get("kernel_dump") else read_code(_file(name, write))


def _compiled_code(name: str, write: Callable[[Module], None]) -> bytes:
    """Compile a module, and return its machine code, which is also stored in the cache.

    With the setting ``kernel_dump``, it is also written to that folder, as text.
    """
    text, machine, place = _text(name, write), _machine(), settings.get("kernel_dump")
    module = _optimised(text, machine)
    code = _emitted(module, machine)
    write_code(_file(name, write), code)
    if place:
        Path(place).mkdir(parents=True, exist_ok=True)
        Path(place, f"{name}.ll").write_text(text, encoding="utf-8")
        Path(place, f"{name}.s").write_text(machine.emit_assembly(module), encoding="utf-8")
    return code


def _file(name: str, write: Callable[[Module], None]) -> str:
    """Return the name of a module's file in the cache."""
    return f"{_digest(_key(name, write) or _text(name, write))}.o"


def _key(name: str, write: Callable[[Module], None]) -> str:
    """Return the key of a module's contents; "" if the contents cannot be known.

    A module's name is unique in a process, so the name and the sources of the kernels identify its
    contents, unless a function from elsewhere writes them or the source files are missing.
    """
    sources = _sources_digest() if str(write.__module__).startswith(PACKAGE) else ""
    return f"{name} {sources} numpy {np.__version__}" if sources else ""  # numpy's constants


PACKAGE = __name__.removesuffix("language.compiler")
SOURCES = Path(__file__).parents[1]
"""Package and folder of the kernels."""


@cache
def _sources_digest() -> str:
    """Return a digest of the kernels' sources; "" if a file cannot be read."""
    try:
        return digest(
            b"".join(
                f"{path.relative_to(SOURCES)}".encode() + b"\0" + path.read_bytes()
                for path in sorted(SOURCES.rglob("*.py"))
            )
        )
    except OSError:
        return ""


def _text(name: str, write: Callable[[Module], None]) -> str:
    """Return a module in LLVM's language."""
    probes = target.system() == target.WINDOWS and not target.is_x86()  # x86-64 calls a function
    module = Module(name, '"probe-stack"="inline-asm"' if probes else "")
    write(module)
    return str(module)


def _features() -> str:
    more = target.extra_features()
    return ",".join(filter(None, (_llvm().get_host_cpu_features().flatten(), more)))


def _machine() -> Any:
    binding = _llvm()
    return binding.Target.from_triple(target.triple()).create_target_machine(
        cpu=binding.get_host_cpu_name(), features=_features(), opt=LEVEL, jit=True
    )


def _digest(key: str) -> str:
    """Return the cache's digest of a key, this version of LLVM, and this processor."""
    import llvmlite

    machine = target.processor_signature() or (_llvm().get_host_cpu_name(), _features())
    made = (key, llvmlite.__version__, target.triple(), machine, target.extra_features(), LEVEL)
    return digest(repr(made).encode())


def _optimised(text: str, machine: Any) -> Any:
    """Return a module after simplification.

    Kernels are written vectorised, unrolled, and with values in registers. LLVM's other passes
    would improve nothing and take longer than the rest of the compilation.
    """
    binding = _llvm()
    module = binding.parse_assembly(text, binding.create_context())
    module.verify()
    options = binding.create_pipeline_tuning_options(speed_level=LEVEL)
    builder = binding.create_pass_builder(machine, options)
    passes = binding.create_new_module_pass_manager()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    passes.run(module, builder)
    return module


def _emitted(module: Any, machine: Any) -> bytes:
    """Return the machine code of a module.

    llvmlite has a lock around each call of LLVM. The call that takes longest runs without: nothing
    that it uses belongs to other modules, each of which has a context and a machine of its own.
    """
    ffi = _llvm().ffi
    locked = ffi.lib.LLVMPY_TargetMachineEmitToMemory
    with ffi.OutputString() as error:
        buffer = getattr(locked, "_cfn", locked)(machine, module, 1, error)
        if not buffer:
            raise RuntimeError(str(error))
    try:
        start, size = ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer)
        return ctypes.string_at(start, size)
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)
