"""Where a net's time goes, beside what the machine could do.

    python bench/profile_net.py resnet50:8:step googlenet:8:forward [--passes 20] [--rows 12]

For each case: the layer types by their share, the slowest single steps with the code that runs
them, and how close the products come to the machine's peak. Convolutions that run by minimal
filtering (``winograd``) can go beyond it, for their operations are counted by the definition.
"""

import argparse
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from nets import NETS
from peers.cases import Case
from peers.run_peak import Measured as Peak

from demitasse import Net
from demitasse.backends import ops
from demitasse.plan import Entry
from demitasse.proto import NetParameter, SolverParameter, parse_text
from demitasse.solvers import Solver

SOLVER = (
    'base_lr: 1e-5 lr_policy: "fixed" momentum: 0.9 weight_decay: 0.0005 '
    "snapshot_after_train: false"
)
Key = tuple[str, str, str]  # layer or "update", its type, "forward" or "backward"


class Profile:
    """One case, with a clock around every step of its plan."""

    def __init__(self, case: Case) -> None:
        message = parse_text(NETS[case.net](case.batch, case.train), NetParameter)
        if case.train:
            param = parse_text(SOLVER, SolverParameter)
            param.net_param.CopyFrom(message)
            solver = Solver(param, device="cpu", seed=1, keep="outputs")
            self.net, self.work = solver.net, lambda: solver.step(1)
        else:
            self.net = Net(message, "TEST", device="cpu", seed=1, keep="outputs")
            self.work = self.net.forward
        rng = np.random.default_rng(0)
        self.inputs = [self.net.blobs[name] for name in self.net.inputs]
        for blob in self.inputs:
            shape = blob.shape
            whole = blob.name == "label"
            blob.mutable_cpu_data()[...] = (
                rng.integers(0, 10, shape) if whole else rng.normal(size=shape)
            )
        self.times: dict[Key, list[float]] = defaultdict(list)
        self.code: dict[Key, str] = {}
        self.flops: dict[Key, float] = {}

    def once(self) -> float:
        """Run one pass over new input; return its seconds."""
        for blob in self.inputs:
            blob.mutable_cpu_data()
        begin = time.perf_counter()
        self.work()
        self.net.synchronize()
        return time.perf_counter() - begin

    def measure(self, passes: int) -> float:
        """Fill ``times``; return the median seconds of passes without clocks inside."""
        for _ in range(3):
            self.once()
        whole = statistics.median(self.once() for _ in range(passes))
        for entry in self.net.plan.entries:
            self._watch(entry)
        for _ in range(passes):
            self.once()
        return whole

    def _watch(self, entry: Entry) -> None:
        layer, group = entry.layer, entry.group
        for way in ("forward", "backward"):
            together = group is not None and (way == "forward" or group.step.own_backward)
            key = (layer.name, layer.type, way)
            runner = group.step if group is not None and together else entry
            setattr(runner, way, self._clocked(getattr(runner, way), key))
            self.code[key] = _code(runner if together else entry.step, way)
            self.flops[key] = _flops(layer.op) * (1 if way == "forward" else _ways(entry))

    def _clocked(self, work: Callable[[], None], key: Key) -> Callable[[], None]:
        def clocked() -> None:
            begin = time.perf_counter()
            work()
            self.times[key].append(time.perf_counter() - begin)

        return clocked

    def rows(self) -> Iterator[tuple[float, Key]]:
        """Yield the median milliseconds of everything that ran."""
        for key, seconds in self.times.items():
            yield statistics.median(seconds) * 1e3, key


def _code(step: object, way: str) -> str:
    calls = getattr(step, f"{way}_calls", None)
    if calls is None:
        return "portable" if step is None else "-"
    names = [call.implementations[0].split(":")[0] for call in calls]
    return ", ".join(name.removesuffix(" llvm") for name in names)


def _flops(op: object) -> float:
    if isinstance(op, ops.Conv):
        return 2.0 * np.prod(op.top) * op.bottom[op.axis] / op.group * np.prod(op.kernel)
    if isinstance(op, ops.InnerProduct):
        return 2.0 * op.rows * op.k * op.m
    return 0.0


def _ways(entry: Entry) -> int:
    """Return how many products the backward pass makes: for the weights, and for the bottom."""
    return 1 + bool(entry.place.propagate_down and entry.place.propagate_down[0])


def tell(case: Case, profile: Profile, whole: float, peak: float, count: int) -> None:
    """Print what was found."""
    rows = sorted(profile.rows(), reverse=True)
    flops = sum(profile.flops[key] for _, key in rows)
    update = whole * 1e3 - sum(ms for ms, _ in rows)
    print(f"\n### {case}: {whole * 1e3:.1f} ms, {flops / whole / 1e9:.0f} of {peak:.0f} GFLOP/s\n")
    shares: dict[str, float] = defaultdict(float, {"update, input, Python": update})
    for ms, (_, kind, way) in rows:
        shares[f"{kind} {way}"] += ms
    print("| part | ms | share |\n| --- | --- | --- |")
    for part, ms in sorted(shares.items(), key=lambda item: -item[1])[:count]:
        print(f"| {part} | {ms:.2f} | {ms / whole / 10:.0f}% |")
    print("\n| step | ms | GFLOP/s | code |\n| --- | --- | --- | --- |")
    for ms, key in rows[:count]:
        speed = f"{profile.flops[key] / ms / 1e6:.0f}" if profile.flops[key] else ""
        print(f"| {key[0]} {key[2]} | {ms:.2f} | {speed} | {profile.code[key]} |")


def _peak() -> float:
    """Return the GFLOP/s of a large product of matrices."""
    machine = Peak(Case.parse("lenet:1:forward"), Path(), os.cpu_count() or 1)
    for _ in range(4):
        machine.run()
    return statistics.median(speed for speed, _ in machine.speeds[1:])


def main() -> None:
    """Profile what the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="+", help="NET:BATCH:forward or NET:BATCH:step")
    parser.add_argument("--passes", type=int, default=20)
    parser.add_argument("--rows", type=int, default=10)
    given = parser.parse_args()
    peak = _peak()
    for text in given.cases:
        case = Case.parse(text)
        profile = Profile(case)
        tell(case, profile, profile.measure(given.passes), peak, given.rows)


if __name__ == "__main__":
    main()
