"""Run nets that nobody wrote on fast code, and compare with portable code in float64.

``python tests/fuzz/nets.py --count 2000`` runs so many nets in child processes and prints each that
fails: the same failure in its smallest form, as a prototxt with the passes, and how to repeat it.
``--pairs`` runs every ordered pair of lowered layers in place of nets. ``ONEDNN_MAX_CPU_ISA=AVX2``
in the environment tries the code for older processors. Exits with 1 if anything fails.
"""

import argparse
import sys
import time
from collections import Counter
from functools import partial
from itertools import count, islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from layer_pairs import pairs
from net_case import Case, case_to_json
from net_generator import generate
from net_shrinker import shrink
from net_workers import run_cases

say = partial(print, flush=True)


def main() -> int:
    """Run the cases that the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, help="how many nets; without it, until --minutes end")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=0, help="number of the first net")
    parser.add_argument("--size", default="mixed", choices=("small", "medium", "large", "mixed"))
    parser.add_argument("--pairs", action="store_true", help="run pairs of layers, small or large")
    parser.add_argument("--every", type=int, default=1, help="run one case of so many")
    parser.add_argument("--jobs", type=int, default=1, help="child processes")
    parser.add_argument("--shrink-seconds", type=float, default=120, help="0: do not shrink")
    parser.add_argument("--stop", type=int, default=20, help="end after so many failures")
    parser.add_argument("--failures", type=Path, help="folder that failing cases are written to")
    options = parser.parse_args()
    cases = _cases(options)
    end = time.monotonic() + 60 * options.minutes
    begin, totals = time.monotonic(), Counter()

    def wanted() -> bool:
        return time.monotonic() < end and totals["failed"] < options.stop

    for case, outcome in run_cases(cases, options.jobs, wanted):
        totals["cases"] += 1
        totals["refused"] += bool(outcome["refused"])
        for key in ("arrays", "explained", "unclear"):
            totals[key] += outcome[key]
        if outcome["refused"]:
            say(f"{case.name}: refused, {outcome['refused'][:200]}")
        if outcome["failure"]:
            totals["failed"] += 1
            _report(case, outcome["failure"], options)
        if totals["cases"] % 100 == 0:
            _tell(totals, begin)
    _tell(totals, begin)
    return int(totals["failed"] > 0)


def _cases(options: argparse.Namespace):
    if options.pairs:
        sizes = ("small", "large") if options.size == "mixed" else (options.size,)
        every = (case for size in sizes for case in pairs(size))
        last = None if options.count is None else options.seed + options.count
        return islice(every, options.seed, last, options.every)
    last = None if options.count is None else options.seed + options.count
    return (generate(i, options.size) for i in islice(count(), options.seed, last, options.every))


def _report(case: Case, failure: list[str], options: argparse.Namespace) -> None:
    kind, text = failure
    say(f"\n=== {case.name}: {kind}\n{text}")
    smallest = case
    if options.shrink_seconds and not kind.endswith((" once", " behind others")):
        smallest = shrink(case, kind, options.shrink_seconds)
    say(f"--- smallest form\n{smallest.net.prototxt()}{smallest.scenario}")
    if smallest.other is not None:
        say(f"--- net in between\n{smallest.other.prototxt()}")
    number = case.name.split()[-1]
    how = f"--pairs --size {case.name.split()[1]}" if options.pairs else f"--size {options.size}"
    say(f"--- repeat: python tests/fuzz/nets.py {how} --seed {number} --count 1")
    if options.failures is not None:
        options.failures.mkdir(parents=True, exist_ok=True)
        path = options.failures / f"{case.name.replace(' ', '_')}.json"
        path.write_text(case_to_json(smallest) + "\n")


def _tell(totals: Counter, begin: float) -> None:
    say(
        f"{totals['cases']} cases in {time.monotonic() - begin:.0f} s: {totals['failed']} failed, "
        f"{totals['refused']} refused; {totals['arrays']} arrays compared, "
        f"{totals['explained']} of them off as rounding explains, {totals['unclear']} unclear"
    )


if __name__ == "__main__":
    sys.exit(main())
