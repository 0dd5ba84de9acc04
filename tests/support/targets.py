"""Kernels compiled and linked for systems and processors that the tests do not run on.

``pytest --targets=x86_64`` (or ``aarch64``) compiles every kernel that the tests compile for the
systems of that architecture, too. The result is linked and checked, and never run.
"""

import re
from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

from llvmlite import binding

from demitasse.backends.kernels.language import compiler, linker, target

__all__ = ["TARGETS", "Recorded", "check_for", "vectors_on_the_stack"]

TARGETS = {
    "x86_64": [("win32", "x86-64-v3"), ("win32", "x86-64-v4"), ("darwin", "x86-64-v3")],
    "aarch64": [("linux", "neoverse-n1"), ("win32", "cortex-a76"), ("darwin", "apple-m1")],
}
"""Systems and LLVM's names of processors, by architecture."""

OUTSIDE = ("state", "__chkstk")
"""External symbols that modules may use."""

SOMEWHERE, FAR = 0x7F00_0000_0000, 0x7FFF_1234_5670
"""Addresses of linked code and of external symbols, too far apart for a relative call."""


@contextmanager
def imitated(architecture, system):
    """Write, compile and link for a system in the block."""
    with (
        mock.patch.object(target, "sys", SimpleNamespace(platform=system)),
        mock.patch.object(target, "platform", SimpleNamespace(machine=lambda: architecture)),
        mock.patch.object(linker, "allocate", return_value=SOMEWHERE),
        mock.patch.object(linker, "publish") as publish,
    ):
        yield publish


def compiled_for(architecture, processor, name, write):
    """Return the machine code of a module, and its assembly, for the system that is imitated."""
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    machine = binding.Target.from_triple(target.triple()).create_target_machine(
        cpu=processor, features=target.ARCHITECTURES[architecture].features,
        opt=compiler.LEVEL, jit=True,
    )  # fmt: skip
    module = compiler._optimised(compiler._text(name, write), machine)
    return machine.emit_object(module), machine.emit_assembly(module)


STACK = {"x86_64": r"(?=.*%[yz]mm).*\(%rsp\)", "aarch64": r".*\bq\d+.*\[sp"}
"""Instructions that use a vector on the stack, by architecture."""


def vectors_on_the_stack(architecture, processor, name, write):
    """Return the instructions that use vectors on the stack, in the loop of most multiply-adds."""
    with imitated(architecture, "linux"):
        _, assembly = compiled_for(architecture, processor, name, write)
    blocks = re.split(r"^(\.LBB\w+):", assembly, flags=re.MULTILINE)
    named = zip(blocks[1::2], blocks[2::2], strict=True)
    loops = [block.splitlines() for label, block in named
             if re.search(rf"^\t(j|b\.)\w+\s+\{label}$", block, re.MULTILINE)]  # fmt: skip
    most = max(loops, key=lambda lines: sum("fmadd" in one or "fmla" in one for one in lines))
    return [one for one in most if re.match(STACK[architecture], one)]


def check_for(architecture, system, processor, name, write, exports):
    """Compile and link a module for a system.

    Unknown relocations and external functions are errors; so are the system's register on AArch64,
    and registers and memory that Windows on x86-64 gives to the caller.
    """
    with imitated(architecture, system) as publish:
        code, assembly = compiled_for(architecture, processor, name, write)
        found = linker.link(code, exports, dict.fromkeys(OUTSIDE, FAR))
    assert set(found) == set(exports)
    assert all(SOMEWHERE <= at < SOMEWHERE + len(publish.call_args[0][1]) for at in found.values())
    if architecture == "aarch64":
        assert not re.search(r"\b[xw]18\b", assembly)
    elif system == "win32":
        for function in re.split(r"^\t\.globl", assembly, flags=re.MULTILINE)[1:]:
            used = {int(n) for n in re.findall(r"%[xyz]mm(\d+)", function)} & set(range(6, 16))
            saved = {int(n) for n in re.findall(r"movaps\t%xmm(\d+), [-\d]*\(%r[sb]p\)", function)}
            assert used <= saved
            assert not re.search(r"-\d+\(%rsp\)", function)


class Recorded:
    """Checks modules for other systems, while they are compiled for this one.

    Attributes:
        count: Number of modules that were checked.
        faults: What is wrong with others.
    """

    def __init__(self, architecture):
        self.architecture, self.count, self.faults = architecture, 0, []
        self._linked = compiler.linked

    def __call__(self, name, write, exports, outside):
        for system, processor in TARGETS[self.architecture]:
            try:
                check_for(self.architecture, system, processor, name, write, exports)
                self.count += 1
            except Exception as error:
                self.faults.append(f"{name} for {system}, {processor}: {error!r}")
        return self._linked(name, write, exports, outside)
