"""Compile modules for this machine's processor, and keep the result on the disk.

The file's name is a digest of what the module is made from, of LLVM's version and of the processor,
so that a kept result is used where it would be made again, and nowhere else. Where the folder
cannot be written to, nothing is kept. What is kept is linked without LLVM where that can be done:
a process that compiles nothing does not load its library, nor write the module's text.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from demitasse.backends.kernel_cache import read_code, write_code
from demitasse.backends.kernels.language import processor, team
from demitasse.backends.kernels.language.linker import NotLinkableError, link
from demitasse.backends.kernels.language.recipe import recipe
from demitasse.core.config import settings
from demitasse.core.hashing import digest

__all__ = ["Status", "compiled", "linked", "status"]

_lock = threading.RLock()
_known: dict[str, dict[str, int]] = {}

LEVEL = 2
NEEDED = ("avx2", "fma")
"""Without these, a kernel's multiplications and additions would be calls of a function."""


@dataclass(frozen=True)
class Status:
    """True if kernels can be made at run time.

    Attributes:
        ready: Whether they can.
        version: Of LLVM's Python package.
        reason: Why they cannot.
    """

    ready: bool
    version: str = ""
    reason: str = ""

    @property
    def processor(self) -> str:
        """Name of the processor, from Linux or else from LLVM."""
        if not self.ready:
            return ""
        return processor.name() or str(_llvm().get_host_cpu_name())

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
    has = processor.features()
    try:
        if find_spec("llvmlite") is None:
            return Status(False, reason="llvmlite is not here")
        if has is None:
            has = frozenset(
                name for name, there in _llvm().get_host_cpu_features().items() if there
            )
        import llvmlite
    except (ImportError, OSError) as error:  # the package, or the library in it
        return Status(False, reason=f"llvmlite is not here ({error})")
    lacking = [name for name in NEEDED if name not in has]
    if lacking:
        return Status(False, reason=f"the processor has no {', '.join(lacking)}")
    return Status(True, llvmlite.__version__)


def status() -> Status:
    """Say whether kernels can be made at run time; or why not."""
    if not settings.get_often("jit"):
        return Status(False, reason="it was switched off")
    return _probed()


def compiled(name: str, write: Callable[[Any], None], *exports: str) -> dict[str, int]:
    """Return the addresses of a module's kernels; they live as long as the process.

    Args:
        name: Of the module; no other one of the process has it.
        write: Writes its kernels.
        exports: Those whose addresses are wanted.
    """
    with _lock:
        if name not in _known:
            _known[name] = _linked(_made_or_kept(name, write), exports)
        return _known[name]


def linked(
    name: str, write: Callable[[Any], None], exports: Sequence[str], outside: Mapping[str, int]
) -> dict[str, int]:
    """Return the addresses of a module's functions, which may call others than kernels do.

    Args:
        name: Of the module; no other one of the process has it.
        write: Writes its functions.
        exports: Those whose addresses are wanted.
        outside: Addresses of what it calls, or reads and writes, by name.

    Raises:
        NotLinkableError: Not here.
    """
    return link(_made_or_kept(name, write), exports, outside)


def _made_or_kept(name: str, write: Callable[[Any], None]) -> bytes:
    """Return a module's machine code, from the disk where it is there."""
    about = recipe(name, write)
    if about is None or settings.get("kernel_dump"):
        text = _text(name, write)
        _dump(name, text)
        return _object(_digest(text), lambda: text)
    return _object(_digest(about), lambda: _text(name, write))


def _text(name: str, write: Callable[[Any], None]) -> str:
    """Return a module in LLVM's language."""
    from llvmlite import ir

    module = ir.Module(name)
    with _uncollected():
        write(module)
        return str(module)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Look for no garbage in the block: a module is many objects, all of them in use to its end.

    Python would go through all that there is over and over, which takes as long as writing them.
    """
    looks = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if looks:
            gc.enable()


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


def _linked(code: bytes, exports: tuple[str, ...]) -> dict[str, int]:
    try:
        return link(code, exports, team.functions())
    except NotLinkableError:
        engine = _engine()
        engine.add_object_file(_llvm().ObjectFileRef.from_data(code))
        engine.finalize_object()
        return {name: engine.get_function_address(name) for name in exports}


def _digest(about: str) -> str:
    """Return under what name code is kept that is made from something, here, by this LLVM."""
    machine = processor.signature() or (_llvm().get_host_cpu_name(), _features())
    made = (about, status().version, machine, LEVEL)
    return digest(repr(made).encode())


def _object(digest: str, text: Callable[[], str]) -> bytes:
    """Return a module's machine code, from the disk or made now."""
    name = f"{digest}.o"
    code = read_code(name)
    if code is None:
        code = _made(text())
        write_code(name, code)
    return code


def _made(text: str) -> bytes:
    """Return a module's machine code, made now."""
    machine = _machine()
    code: bytes = machine.emit_object(_optimised(text, machine))
    return code


def _optimised(text: str, machine: Any) -> Any:
    """Return a module, a little simpler.

    Kernels are written as they are to run: vectors, unrolled, and their values in registers. The
    usual passes would find nothing more in them, and take longer than all the rest.
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
