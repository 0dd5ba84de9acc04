"""Compile modules for this machine's processor, and keep the result on the disk.

A cached file's name is a digest of the module's cache key, LLVM's version and the target.
Without write access to the folder, nothing is cached. Cached code is linked without LLVM if
possible: a process that compiles nothing neither loads LLVM's library nor writes the module's text.
Python takes longer to write a module than to load LLVM's library.
"""

import gc
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

from demitasse.backends.kernel_cache import read_code, write_code
from demitasse.backends.kernels.language import target
from demitasse.backends.kernels.language.linker import link
from demitasse.core.config import settings
from demitasse.core.hashing import digest

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
Elementwise("tanh", (), x.size, Tuning(vector_width(), threads=2))(x, y)
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


def linked(
    name: str, write: Callable[[Any], None], exports: Sequence[str], outside: Mapping[str, int]
) -> dict[str, int]:
    """Return the addresses of a module's functions, linked against the addresses ``outside``."""
    return link(_load_or_compile(name, write), exports, outside)


def _load_or_compile(name: str, write: Callable[[Any], None]) -> bytes:
    """Return a module's machine code, from the cache if it is there."""
    key = cache_key(name, write)
    if key is None or settings.get("kernel_dump"):
        text = _text(name, write)
        _dump(name, text)
        return _object(_digest(text), lambda: text)
    return _object(_digest(key), lambda: _text(name, write))


def _text(name: str, write: Callable[[Any], None]) -> str:
    """Return a module in LLVM's language.

    A module is many objects, all in use to the end; collecting garbage takes as long as writing.
    """
    from llvmlite import ir

    module, was_enabled = ir.Module(name), gc.isenabled()
    gc.disable()
    try:
        write(module)
        text = str(module)
    finally:
        if was_enabled:
            gc.enable()
    if target.system() == target.WINDOWS and not target.is_x86():  # x86-64 calls a function
        text = text.replace("\n{\n", ' "probe-stack"="inline-asm"\n{\n')
    return text


def _dump(name: str, text: str) -> None:
    """Write a module's LLVM text and assembly to the folder of the setting ``kernel_dump``."""
    place = settings.get("kernel_dump")
    if not place:
        return
    machine = _machine()
    assembly = machine.emit_assembly(_optimised(text, machine))
    Path(place).mkdir(parents=True, exist_ok=True)
    Path(place, f"{name}.ll").write_text(text, encoding="utf-8")
    Path(place, f"{name}.s").write_text(assembly, encoding="utf-8")


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


def _object(digest: str, text: Callable[[], str]) -> bytes:
    """Return a module's machine code, from the cache or compiled now."""
    name = f"{digest}.o"
    code = read_code(name)
    if code is None:
        code = _made(text())
        write_code(name, code)
    return code


def _made(text: str) -> bytes:
    """Compile a module's text to machine code."""
    machine = _machine()
    code: bytes = machine.emit_object(_optimised(text, machine))
    return code


def _optimised(text: str, machine: Any) -> Any:
    """Return a module after inlining and simplification.

    Kernels are written vectorised, unrolled, and with values in registers. LLVM's other passes
    would improve nothing and take longer than the rest of the compilation.
    """
    binding = _llvm()
    module = binding.parse_assembly(text)
    module.verify()
    options = binding.create_pipeline_tuning_options(speed_level=LEVEL)
    builder = binding.create_pass_builder(machine, options)
    passes = binding.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    passes.run(module, builder)
    return module


SOURCES = Path(__file__).parents[1]
"""Sources of the kernel generators."""


def cache_key(name: str, write: Callable[[Any], None]) -> str | None:
    """Return the key of a module's contents, or None if the contents cannot be known.

    A module's name is unique in a process, so the name and the sources of the generators identify
    its contents. They cannot if a function from outside ``SOURCES`` takes part, as in a test, or if
    the source files are missing.
    """
    sources = _sources_digest()
    files = (Path(function.__code__.co_filename) for function in _parts(write))
    if not sources or not all(file.is_relative_to(SOURCES) for file in files):
        return None
    return f"{name} {sources} numpy {np.__version__}"  # NumPy computes some constants


@cache
def _sources_digest() -> str:
    """Return a digest of the generators' sources; "" if a file cannot be read."""
    try:
        return digest(
            b"".join(
                f"{path.relative_to(SOURCES)}".encode() + b"\0" + path.read_bytes()
                for path in sorted(SOURCES.rglob("*.py"))
            )
        )
    except OSError:
        return ""


def _parts(value: object) -> Iterator[FunctionType]:
    """Yield a function and the functions in its closure."""
    if isinstance(value, partial):
        yield from _parts(value.func)
        for argument in (*value.args, *value.keywords.values()):
            yield from _parts(argument)
    elif isinstance(value, FunctionType):
        yield value
        for cell in value.__closure__ or ():
            yield from _parts(cell.cell_contents)
