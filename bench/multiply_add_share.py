"""Share of the peak of multiply-adds that the innermost loops of aarch64 kernels reach.

    python bench/multiply_add_share.py [--cpus neoverse-n1 ...] [--only ROW] [--show]

The kernels are compiled for each processor with vectors of 4 floats, on any machine, and their
innermost loops are given to llvm-mca, which models a processor without its caches: upper bounds,
no measurements. The peak is what llvm-mca says of multiply-adds alone. The table is that of
docs/devices/systems.md.
"""

import argparse
import platform
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from operator import index

from llvmlite import binding

from demitasse.backends import ops
from demitasse.backends.kernels.depthwise import DepthwiseConvolution, plan_depthwise
from demitasse.backends.kernels.few_inputs import DirectConvolution, DirectGradient, plan_direct
from demitasse.backends.kernels.few_outputs import NarrowConvolution, plan_few_outputs
from demitasse.backends.kernels.few_rows import FewRows
from demitasse.backends.kernels.igemm import plan_igemm
from demitasse.backends.kernels.igemm_convolution import FilterGradient, igemm_forward
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import compiler
from demitasse.backends.kernels.language.structs import CompiledKernel
from demitasse.backends.kernels.tuning import LOWERINGS, Tuning
from demitasse.backends.kernels.winograd.convolution import product_kernel

WIDTH = 4
CPUS = ("neoverse-n1", "neoverse-v2", "cortex-a72", "apple-m1")
TRIPLE = "aarch64-unknown-linux-gnu"
TUNING = Tuning(WIDTH, always=frozenset(LOWERINGS))


def conv(x: ops.Shape, filters: int, side: int, *, stride: int = 1, group: int = 1) -> ops.Conv:
    """Return a convolution of square windows with zeros around the image."""
    pad = side // 2
    size = [(one + 2 * pad - side) // stride + 1 for one in x[2:]]
    return ops.Conv("float32", x, (x[0], filters, *size), 1, (side,) * 2, (stride,) * 2,
                    (pad,) * 2, (1, 1), group=group, bias=True)  # fmt: skip


def last(shape: ops.Shape) -> Images:
    """Return images whose pixels have all their channels side by side."""
    return Images.channels_last(shape)


def depthwise(side: int, stride: int) -> None:
    op = conv((1, 64, 56, 56), 64, side, stride=stride, group=64)
    strips = plan_depthwise(op, op.bottom, op.top, TUNING)
    DepthwiseConvolution(strips, last(op.bottom), last(op.top))


def igemm() -> None:
    op = conv((1, 64, 56, 56), 128, 3)
    plan = plan_igemm(op, op.bottom, op.top, TUNING)
    igemm_forward(plan, last(op.bottom), last(op.top))
    FilterGradient(plan, last(op.bottom), last(op.top), op.kernel)


def few_inputs() -> None:
    op = conv((1, 3, 56, 56), 64, 3)
    plan = plan_direct(op, op.bottom, op.top, TUNING)
    DirectConvolution(plan, last(op.top))
    DirectGradient(plan, last(op.top), bias=True)


def few_outputs() -> None:
    op = conv((1, 64, 56, 56), 2, 3)
    NarrowConvolution(plan_few_outputs(op, op.bottom, op.top, TUNING), last(op.bottom))


def products(vectors: int, *, adds: bool = False) -> None:
    index(product_kernel(WIDTH, vectors, [48], adds=adds))


def few_rows(rows: int) -> None:
    FewRows(rows, 512, 512, 16, 512, TUNING)


ROWS: dict[str, tuple[str, Callable[[], object]]] = {
    "products of Winograd's filtering, of 3 vectors by 8 rows": (
        "packed_8of3x4", lambda: products(3)),
    "the same, of 2 vectors by 12 rows": ("packed_12of2x4", lambda: products(2)),
    "the same, for the gradient of the filters": ("adding_8of3x4", lambda: products(3, adds=True)),
    "implicit GEMM": ("igemm4_12_2of8_summed", igemm),
    "implicit GEMM, gradient of the filters": ("igemm_gradient4", igemm),
    "convolution of few channels": ("direct4", few_inputs),
    "convolution of few channels, gradient": ("direct_gradient4", few_inputs),
    "convolution to few channels": ("narrow", few_outputs),
    "InnerProduct of 4 rows": ("few_rows4_4", lambda: few_rows(4)),
    "InnerProduct of 1 row": ("few_rows4_1", lambda: few_rows(1)),
    "depthwise convolution, 3x3": ("depthwise4_3x7x3x1", lambda: depthwise(3, 1)),
    "depthwise convolution, 3x3 of stride 2": ("depthwise4_3x7x3x2", lambda: depthwise(3, 2)),
    "depthwise convolution, 5x5": ("depthwise4_5x7x5", lambda: depthwise(5, 1)),
}  # fmt: skip
"""Rows of the table: prefix of a module's name, and the function that makes the kernel."""


def text_of(prefix: str, make: Callable[[], object]) -> str:
    """Return the first module of a kernel with the prefix, in LLVM's language."""
    make()
    return next(text for name, text in texts.items() if name.startswith(prefix))


texts: dict[str, str] = {}


def collect(
    name: str, write: Callable[[object], None], exports: Sequence[str], _outside: object
) -> dict[str, int]:
    """Keep a module's text in place of its machine code, which nothing runs."""
    texts[name] = compiler._text(name, write)
    return dict.fromkeys(exports, 1)


def compile_at_once(kernel: CompiledKernel, name: str, write: Callable[[object], None]) -> None:
    """Compile a kernel when it is made, not when it first runs."""
    make(kernel, name, write)
    index(kernel)


compiler.linked = collect
make, CompiledKernel.__init__ = CompiledKernel.__init__, compile_at_once


def assembly(text: str, cpu: str) -> str:
    """Return a module's assembly for a processor."""
    target = binding.Target.from_triple(TRIPLE)
    machine = target.create_target_machine(cpu=cpu, opt=compiler.LEVEL, jit=True)
    return machine.emit_assembly(compiler._optimised(text, machine))


BRANCH = re.compile(r"(b\.\w+|b|cbn?z|tbn?z)\s")
SPILL = re.compile(r"\bq\d+.*\[sp")
"""Accesses to a vector on the stack."""


def innermost(code: str) -> Iterator[list[str]]:
    """Yield the instructions of loops of one basic block."""
    label, body = "", []
    for line in code.splitlines():
        if named := re.match(r"(\.LBB\w+):", line):
            label, body = named[1], []
            continue
        instruction = line.partition("//")[0].strip()
        if not instruction or instruction.startswith("."):
            continue
        body.append(instruction)
        if BRANCH.match(instruction):
            if label and instruction.endswith(label):
                yield body
            body = [] if instruction.startswith("b ") else body


def multiply_adds(body: list[str]) -> int:
    return sum(one.startswith(("fmla", "fmls")) for one in body)


def cycles(mca: str, cpu: str, body: list[str], times: int = 200) -> float:
    """Return what llvm-mca says of one iteration."""
    command = (mca, f"-mtriple={TRIPLE}", f"-mcpu={cpu}", f"-iterations={times}")
    source = "\n".join(one for one in body if not BRANCH.match(one))
    run = subprocess.run(command, input=source, capture_output=True, text=True, check=True)
    return int(re.search(r"Total Cycles:\s+(\d+)", run.stdout)[1]) / times


def peak(mca: str, cpu: str) -> float:
    """Return the multiply-adds of a cycle, by vectors or by an element."""
    forms = ("v31.4s", "v31.s[1]")
    bodies = [[f"fmla v{n}.4s, v30.4s, {form}" for n in range(30)] for form in forms]
    return max(round(len(body) / cycles(mca, cpu, body)) for body in bodies)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpus", nargs="*", default=CPUS)
    parser.add_argument("--mca", default="llvm-mca-19")
    parser.add_argument("--only", default="", help="part of a row's name")
    parser.add_argument("--show", action="store_true", help="print the loops' instructions, too")
    given = parser.parse_args()
    platform.machine = lambda: "aarch64"  # so that kernels choose its instructions
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    most = {cpu: peak(given.mca, cpu) for cpu in given.cpus}
    print(f"| innermost loop | {' | '.join(given.cpus)} |")
    print(f"| --- | {' | '.join('--:' for _ in given.cpus)} |")
    for name, (prefix, make) in ROWS.items():
        if given.only not in name:
            continue
        text, shares = text_of(prefix, make), []
        for cpu in given.cpus:
            loops = list(innermost(assembly(text, cpu)))
            count = max(map(multiply_adds, loops))
            largest = [body for body in loops if multiply_adds(body) == count]
            share, body = max(
                (count / most[cpu] / cycles(given.mca, cpu, body), body) for body in largest
            )
            shares.append(f"{share:.0%}" + " (spills)" * any(map(SPILL.search, body)))
            if given.show:
                print("\n".join((f"-- {name} {cpu}", *body)))
        print(f"| {name} | {' | '.join(shares)} |")


if __name__ == "__main__":
    main()
