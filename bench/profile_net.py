"""Where a net's time goes, beside what the machine could do.

    python bench/profile_net.py resnet50:8:step googlenet:8:forward [--passes 20] [--rows 12]

For each case: the layer types by their share, the slowest single steps with the code that runs
them, and how close the products come to the machine's peak. Convolutions that run by minimal
filtering (``winograd``) can go beyond it, for their operations are counted by the definition.
"""

import argparse
import os
import statistics
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from case_net import CaseNet
from peers.cases import Case
from peers.run_peak import Measured as Peak

from demitasse.plan.report import Stopwatch, report


@dataclass(frozen=True)
class Row:
    """One direction of a layer: milliseconds, its name, type and direction, code, operations."""

    ms: float
    name: str
    part: str
    code: str
    operations: int


class Profile(CaseNet):
    """One case, with a clock after every layer of its plan."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.rows: list[Row] = []

    def measure(self, passes: int) -> float:
        """Fill ``rows``; return the median seconds of passes without clocks inside."""
        for _ in range(3):
            self.once()
        whole = statistics.median(self.once() for _ in range(passes))
        clocks = []
        for _ in range(passes):
            with Stopwatch(self.net.plan, self.net.synchronize) as clock:
                self.once()
            clocks.append(clock)
        for index, layer in enumerate(report(self.net.plan)):
            forward = statistics.median(clock.forward[index] for clock in clocks)
            backward = statistics.median(clock.backward[index] for clock in clocks)
            name, kind = layer.name, layer.type
            self.rows += [
                Row(forward * 1e3, name, f"{kind} forward", layer.code, 2 * layer.multiply_adds),
                Row(
                    backward * 1e3, name, f"{kind} backward", layer.backward_code,
                    2 * layer.backward_multiply_adds,
                ),
            ]  # fmt: skip
        self.rows.sort(key=lambda row: -row.ms)
        return whole


def tell(case: Case, profile: Profile, whole: float, peak: float, count: int) -> None:
    """Print what was found."""
    rows = profile.rows
    flops = sum(row.operations for row in rows)
    update = whole * 1e3 - sum(row.ms for row in rows)
    print(f"\n### {case}: {whole * 1e3:.1f} ms, {flops / whole / 1e9:.0f} of {peak:.0f} GFLOP/s\n")
    shares: dict[str, float] = defaultdict(float, {"update, input, Python": update})
    for row in rows:
        shares[row.part] += row.ms
    print("| part | ms | share |\n| --- | --- | --- |")
    for part, ms in sorted(shares.items(), key=lambda item: -item[1])[:count]:
        print(f"| {part} | {ms:.2f} | {ms / whole / 10:.0f}% |")
    print("\n| step | ms | GFLOP/s | code |\n| --- | --- | --- | --- |")
    for row in rows[:count]:
        speed = f"{row.operations / row.ms / 1e6:.0f}" if row.operations else ""
        print(f"| {row.name} {row.part.split()[1]} | {row.ms:.2f} | {speed} | {row.code} |")


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
