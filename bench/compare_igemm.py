"""Implicit GEMM beside oneDNN's convolutions: three passes over the shapes of some nets.

    python bench/compare_igemm.py                     # ResNet-50 and FlowNet, one thread
    python bench/compare_igemm.py --images 4 --threads 2
    ONEDNN_MAX_CPU_ISA=AVX2 python bench/compare_igemm.py

Each pass runs in turns with oneDNN's primitive in the layouts that oneDNN likes best. Printed are
the median GFLOP/s of both, and their ratio, above 1 where implicit GEMM is faster.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.igemm import plan_igemm
from demitasse.backends.kernels.igemm_convolution import (
    IgemmFilterGradient,
    igemm_forward,
    igemm_input_gradient,
)
from demitasse.backends.kernels.images import Images
from demitasse.backends.onednn.library.constants import Algorithm, Arg, Pass, Query
from demitasse.backends.onednn.library.engine import engine
from demitasse.backends.onednn.library.layout import dims
from demitasse.backends.onednn.threads import ready_threads
from demitasse.core.config import settings

PIXELS = [
    (64, 56, 64), (64, 56, 256), (256, 56, 64), (256, 56, 128), (128, 28, 512), (512, 28, 128),
    (512, 28, 256), (256, 14, 1024), (1024, 14, 256), (1024, 14, 512), (512, 7, 2048),
    (2048, 7, 512),
]  # fmt: skip
CASES = [
    *((c, (size, size), m, 1, 1) for c, size, m in PIXELS),
    (256, (56, 56), 512, 1, 2), (512, (28, 28), 1024, 1, 2), (1024, (14, 14), 2048, 1, 2),
    (128, (56, 56), 128, 3, 2), (256, (28, 28), 256, 3, 2), (512, (14, 14), 512, 3, 2),
    (64, (96, 128), 128, 5, 2), (128, (48, 64), 256, 5, 2), (256, (24, 32), 512, 3, 2),
]  # fmt: skip
"""Channels, size, filters, kernel and stride."""

PASSES = "forward", "input gradient", "filter gradient"
Run = Callable[[], None]


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--results", type=Path, help="file of JSON lines for the figures")
    given = parser.parse_args()
    settings.set("threads", given.threads)
    engine()  # loads the library, whose threads are then those of this one
    ready_threads()
    clock = time.thread_time if given.threads == 1 else time.perf_counter
    totals = np.zeros((len(PASSES), 2))
    lines = []
    for c, size, m, kernel, stride in CASES:
        pad = kernel // 2
        top = [(length + 2 * pad - kernel) // stride + 1 for length in size]
        op = ops.Conv(
            dtype="float32", bottom=(given.images, c, *size), top=(given.images, m, *top), axis=1,
            kernel=(kernel, kernel), stride=(stride, stride), pad=(pad, pad), dilation=(1, 1),
            group=1, bias=True,
        )  # fmt: skip
        flops = 2 * given.images * c * m * kernel * kernel * top[0] * top[1]
        for number, (name, ours, theirs) in enumerate(
            zip(PASSES, own(op), library(op), strict=True)
        ):
            medians = interleaved(ours, theirs, given.rounds, clock)
            totals[number] += medians
            rates = [flops / one / 1e9 for one in medians]
            case = f"{c}x{size[0]}x{size[1]} to {m}, {kernel}x{kernel} by {stride}"
            print(f"{case:32} {name:16} {rates[0]:6.1f} {rates[1]:6.1f} {rates[0] / rates[1]:5.2f}")
            figures = {"ours": round(rates[0], 2), "oneDNN": round(rates[1], 2)}
            how = {"images": given.images, "threads": given.threads}
            lines.append({"case": case, "pass": name, **how, **figures})
    for name, (ours, theirs) in zip(PASSES, totals, strict=True):
        print(f"{'all together':32} {name:16} {theirs / ours:19.2f}")
    if given.results:
        isa = engine().tuning.instructions
        text = [json.dumps({"instructions": isa, **line}) for line in lines]
        given.results.write_text("\n".join(text) + "\n")


def interleaved(ours: Run, theirs: Run, rounds: int, clock: Callable[[], float]) -> list[float]:
    """Return the median seconds of both, which run in turns."""
    for run in (ours, theirs, ours, theirs):
        run()
    begin = time.perf_counter()
    ours()
    count = max(1, int(0.01 / (time.perf_counter() - begin)))
    seconds: list[list[float]] = [[], []]
    for _ in range(rounds):
        for run, times in zip((ours, theirs), seconds, strict=True):
            begin = clock()
            for _ in range(count):
                run()
            times.append((clock() - begin) / count)
    return [float(np.median(times)) for times in seconds]


def numbers(size: int) -> np.ndarray:
    """Return random numbers in aligned memory."""
    array = aligned(size)
    array[:] = np.random.default_rng(0).standard_normal(size)
    return array


def own(op: ops.Conv) -> Iterator[Run]:
    """Yield the passes by implicit GEMM, with channels last."""
    x, y = (Images.in_blocks(shape, shape[1]) for shape in (op.bottom, op.top))
    source, target = (numbers(int(np.prod(shape))) for shape in (op.bottom, op.top))
    weights = numbers(op.top[1] * op.bottom[1] * op.kernel[0] * op.kernel[1])
    offsets = numbers(op.top[1])
    plan = plan_igemm(op, op.bottom, op.top, engine().tuning.as_set(int(settings.get("threads"))))
    forward, back = igemm_forward(plan, x, y), igemm_input_gradient(plan, x, y)
    for one in (forward, back):
        one.update(weights)
    scratch = aligned(max(forward.scratch_size, back.scratch_size))
    yield lambda: forward(source, target, offsets, scratch)
    yield lambda: back(target, source, None, scratch)
    filters = IgemmFilterGradient(plan, op, x, y)
    more = aligned(filters.scratch_size)
    yield lambda: filters(source, target, weights, offsets, more)


def library(op: ops.Conv) -> Iterator[Run]:
    """Yield the passes by oneDNN's primitives."""
    one, bias = engine(), engine().plain((op.top[1],))
    pads = dims(op.pad)
    window = dims(op.stride), dims((0, 0)), pads, pads
    x, y = one.any(op.bottom), one.any(op.top)
    w = one.any((op.top[1], op.bottom[1], *op.kernel))

    def run(kind: str, roles: dict[int, Query], *arguments: object) -> Run:
        found = one.describe(f"convolution_{kind}", *arguments)
        layouts = {role: found.layout(query) for role, query in roles.items()}
        if kind != "backward_data":
            layouts[Arg.BIAS if kind == "forward" else Arg.DIFF_BIAS] = bias
        uses = [(role, layout.handle) for role, layout in layouts.items()]
        primitive = found.primitive(one.stream, uses)
        for role, layout in layouts.items():
            primitive.bind(primitive.place(role), numbers(layout.size))
        return primitive.run

    images = {Arg.SRC: Query.SRC, Arg.WEIGHTS: Query.WEIGHTS, Arg.DST: Query.DST}
    yield run("forward", images, Pass.INFERENCE, Algorithm.CONVOLUTION, x, w, bias, y, *window)
    training = Pass.TRAINING, Algorithm.CONVOLUTION
    hint = one.describe("convolution_forward", *training, x, w, bias, y, *window)
    back = {
        Arg.DIFF_SRC: Query.DIFF_SRC, Arg.WEIGHTS: Query.WEIGHTS, Arg.DIFF_DST: Query.DIFF_DST,
    }  # fmt: skip
    yield run("backward_data", back, Algorithm.CONVOLUTION, x, w, y, *window, hint)
    filters = {
        Arg.SRC: Query.SRC, Arg.DIFF_WEIGHTS: Query.DIFF_WEIGHTS, Arg.DIFF_DST: Query.DIFF_DST,
    }  # fmt: skip
    yield run("backward_weights", filters, Algorithm.CONVOLUTION, x, w, bias, y, *window, hint)


if __name__ == "__main__":
    main()
