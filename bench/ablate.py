"""Time nets with and without each lowering of the cpu backend.

    python bench/ablate.py [LOWERING ...] [--cases resnet50:1:step ...] [--threads 1 2]
        [--instructions AVX2 native] [--seconds 4] [--json FILE]

A lowering is faster code for some layers; ``LOWERINGS`` in
``demitasse/backends/kernels/tuning.py`` lists them. For each case two nets run in turns in one
process: one as always, one with a lowering off. Nets that run the same code either way are left
out. The figure is the time without the lowering over the time with it: above 1, the lowering pays.
A lowering stays if it pays 3 % on two cases, or 10 % on one, and costs more than 1 % on none. The
row ``none`` compares equal nets: what it finds is the place of arrays in memory, and noise.
"""

import argparse
import gc
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from case_net import CaseNet
from peers.cases import KNOWN, Case

import demitasse as dm
from demitasse.backends.kernels.tuning import LOWERINGS
from demitasse.plan.report import report

NETS = (
    "lenet:64 cifar10_quick:100 caffenet:1 googlenet:1 googlenet:8 resnet50:1 resnet50:8 "
    "squeezenet:1 mobilenet:1 mobilenet:8 vgg16:1 resnet18:1 resnet20:32 densenet121:1 "
    "mobilenet_v2:1 shufflenet:1 shufflenet:8 resnext50:1 senet50:1 inception:1 tiny_yolo:1 "
    "unet:1 deeplab:1 dcgan:16 autoencoder:16 srcnn:1 vdsr:1 flownet:1 text_cnn:16 "
    "ssd_mobilenet:1 fcn:1 segnet:1 lanes:1 lrcn:1 char_rnn:16 fsrcnn:1 c3d:1 slim_face:1 "
    "rfb_face:1 face_units:1 pfld:1 pose_machine:1"
)

DENSE = {"unet", "deeplab", "fcn", "segnet", "lanes"}
"""Nets with a label for each pixel, of which no step is measured."""

NONE = "none"
"""Stands for no lowering: of a usual net, and of the comparison of two."""

WARMUP = 4
"""Passes before the first measurement: preparation, compilation, recordings."""

ROUNDS = 5
"""Fewest rounds, of one pass of either net."""


class Runner(CaseNet):
    """A net with fixed lowerings.

    Args:
        case: The net, batch and passes.
        without: The lowering that is off; ``NONE`` for none.
    """

    def __init__(self, case: Case, without: str) -> None:
        from demitasse.backends.cpu.engine import engine

        usual = engine().tuning
        engine().tuning = replace(usual, without=frozenset({without} - {NONE}))
        try:
            super().__init__(case)
            for _ in range(WARMUP):
                self.once()
        finally:
            engine().tuning = usual

    def code(self) -> list[tuple[object, ...]]:
        """Return the code of each layer, and the memory for which some of it is told apart."""
        return [
            (each.code, each.backward_code, each.part_of, "" if each.part_of else each.workspace)
            for each in report(self.net.plan)
        ]


def compare(usual: Runner, other: Runner, seconds: float) -> tuple[float, float]:
    """Return the ratio of times, by medians of pairs and by minima."""
    one: list[float] = []
    two: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(one) < ROUNDS:
        one.append(usual.once())
        two.append(other.once())
    pairs = [b / a for a, b in zip(one, two, strict=True)]
    return statistics.median(pairs), min(two) / min(one)


def compare_without(
    lowering: str, case: Case, usual: Runner, seconds: float
) -> tuple[float, float] | None:
    """Return the ratios of a net without a lowering; None where it runs the same code."""
    other = Runner(case, lowering)
    if lowering != NONE and other.code() == usual.code():
        return None
    return compare(usual, other, seconds)


def measure(options: argparse.Namespace) -> None:
    """Measure in this process; print a line of JSON for each figure."""
    for case, threads in itertools.product(options.cases, options.threads):
        dm.settings.set("threads", threads)
        usual = Runner(case, NONE)
        for lowering in [NONE, *options.lowerings]:
            found = compare_without(lowering, case, usual, options.seconds)
            gc.collect()  # the net that was compared: two at a time fill the memory
            if found is None:
                continue
            median, least = found
            figure = {
                "instructions": options.instructions[0],
                "lowering": lowering,
                "case": str(case),
                "threads": threads,
                "ratio": round(median, 3),
                "ratio_of_minima": round(least, 3),
            }
            print(json.dumps(figure), flush=True)


def table(figures: list[dict]) -> str:
    """Return the figures as a table in Markdown: one row for each lowering and instruction set.

    Ratios of lowerings are relative to those of equal nets.
    """
    equal = {_place(each): each["ratio"] for each in figures if each["lowering"] == NONE}
    rows = defaultdict(list)
    for each in figures:
        by = 1 if each["lowering"] == NONE else equal.get(_place(each), 1)
        rows[each["lowering"], each["instructions"]].append(each | {"ratio": each["ratio"] / by})
    lines = [
        "| lowering | instructions | cases | pays 3 % | pays 10 % | costs 1 % | best | worst |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (lowering, instructions), found in sorted(rows.items()):
        found.sort(key=lambda each: each["ratio"])
        ratios = [each["ratio"] for each in found]
        ends = [f"{f['ratio']:.2f} {f['case']}, {f['threads']} threads" for f in found]
        counts = (
            sum(ratio >= 1.03 for ratio in ratios),
            sum(ratio >= 1.1 for ratio in ratios),
            sum(ratio < 0.99 for ratio in ratios),
        )
        lines.append(
            f"| {lowering} | {instructions} | {len(found)} | {counts[0]} | {counts[1]} | "
            f"{counts[2]} | {ends[-1]} | {ends[0]} |"
        )
    return "\n".join(lines)


def _place(figure: dict) -> tuple[object, ...]:
    return tuple(figure[name] for name in ("instructions", "case", "threads"))


def _case(text: str) -> Case:
    net, batch, mode = text.split(":")
    if net not in KNOWN:
        raise argparse.ArgumentTypeError(f"{net} is none of {', '.join(KNOWN)}")
    return Case(net, int(batch), mode)


def default_cases() -> list[Case]:
    """Return forward passes of all nets, and steps of those with a loss."""
    cases = [_case(f"{net}:{mode}") for net in NETS.split() for mode in ("forward", "step")]
    return [
        case
        for case in cases
        if not case.train or (case.net not in DENSE and "Loss" in case.prototxt())
    ]


def main() -> None:
    """Measure the cases in a process for each instruction set; print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lowerings", nargs="*", choices=[*LOWERINGS, []], metavar="LOWERING")
    parser.add_argument("--cases", nargs="+", type=_case)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, os.cpu_count() or 1])
    parser.add_argument("--instructions", nargs="+", default=["AVX2", "native"])
    parser.add_argument("--seconds", type=float, default=4, help="time of a figure")
    parser.add_argument("--json", type=Path, help="file that the figures are added to")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.lowerings = options.lowerings or list(LOWERINGS)
    options.cases = options.cases or default_cases()
    if options.child:
        measure(options)
        return
    figures = []
    for case, instructions in itertools.product(options.cases, options.instructions):
        limit = {} if instructions == "native" else {"ONEDNN_MAX_CPU_ISA": instructions}
        child = subprocess.Popen(
            [
                sys.executable, __file__, *options.lowerings, "--child", "--cases", str(case),
                "--threads", *map(str, options.threads), "--seconds", str(options.seconds),
                "--instructions", instructions,
            ],
            env=os.environ | limit,
            stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        for line in child.stdout:
            figures.append(json.loads(line))
            print(line, end="", flush=True)
            if options.json:
                with options.json.open("a") as file:
                    file.write(line)
        if child.wait():
            print(f"{case} with {instructions} ended with {child.returncode}", file=sys.stderr)
    print(table(figures))


if __name__ == "__main__":
    main()
