"""Demitasse beside PyTorch, ONNX Runtime and OpenCV, on this machine.

    python bench/compare_peers.py                          # everything, an hour and a half
    python bench/compare_peers.py --aims                   # what we have aims for, half an hour
    python bench/compare_peers.py --minutes 20 'lenet:*' 'googlenet:8:*'
    python bench/compare_peers.py --quick                  # tries the harness, measures nothing

Needs the dependency group ``peers``; ``nox -s bench_peers`` installs it. Tables go to standard
output, progress to standard error, both and all numbers to ``--out``.
"""

import argparse
import json
import os
import sys
import time
from fnmatch import fnmatch
from pathlib import Path

from peers import cases
from peers.engines import DEFAULT, PEAK, find
from peers.process import ask
from peers.report import Report, Result
from peers.rounds import Options, measure


def main() -> None:
    """Measure what the command line asks for."""
    given = _arguments()
    chosen = cases.choose(given.cases, quick=given.quick, aims=given.aims)
    if given.quick:
        chosen = [cases.Case(c.net, min(c.batch, 4), c.mode, 4) for c in chosen]
    engines = [*_engines(given), *([] if given.no_peak else [PEAK])]
    given.out.mkdir(parents=True, exist_ok=True)
    options = Options(given.rounds, given.turn, given.threads, given.patience, _tell)
    settings = {"engines": engines, "rounds": given.rounds, "seconds of a turn": given.turn,
                "threads": given.threads, "minutes": given.minutes}  # fmt: skip
    report = Report(json.loads(ask("peers.facts", threads=given.threads)), settings)
    for name, value in report.facts.items():
        _tell(f"{name}: {value}")
    begin = time.monotonic()
    for number, case in enumerate(chosen):
        _tell(f"{case} ({number + 1} of {len(chosen)}, {(time.monotonic() - begin) / 60:.0f} min)")
        share = _share(begin, given.minutes, len(chosen) - number)
        report.results.append(Result(case, *measure(case, engines, options, share)))
        _write(given.out, report)
    settings["took minutes"] = round((time.monotonic() - begin) / 60, 1)
    _write(given.out, report)
    print(report.markdown())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = ", ".join(map(str, cases.DEFAULT))
    parser.add_argument("cases", nargs="*", help=f"NET:BATCH:MODE or a pattern of: {known}")
    parser.add_argument("--aims", action="store_true", help="the nine cases that we have aims for")
    parser.add_argument("--engines", default=",".join(DEFAULT), help="names or patterns")
    parser.add_argument("--minutes", type=float, help="fill about so many with rounds, 3 at least")
    parser.add_argument("--rounds", type=int, help="of a case, at most (7; minutes: 50; quick: 3)")
    parser.add_argument("--turn", type=float, help="seconds of an engine's turn (0.8; quick: 0.05)")
    parser.add_argument("--threads", type=int, default=_cores(), help="of every engine")
    parser.add_argument("--patience", type=int, help="repetitions of a disturbed turn (5; quick 0)")
    parser.add_argument("--quick", action="store_true", help="tiny nets, short turns")
    parser.add_argument("--no-peak", action="store_true", help="do not measure the peak")
    parser.add_argument("--out", type=Path, default=Path(".benchmarks/peers"))
    given = parser.parse_args()
    usual = (3, 0.05, 0) if given.quick else (50 if given.minutes else 7, 0.8, 5)
    for name, value in zip(("rounds", "turn", "patience"), usual, strict=True):
        if getattr(given, name) is None:
            setattr(given, name, value)
    return given


def _engines(given: argparse.Namespace) -> list[str]:
    names: list[str] = []
    for pattern in given.engines.split(","):
        names += [name for name in DEFAULT if fnmatch(name, pattern)] or [pattern]
    for name in names:
        find(name)
    return list(dict.fromkeys(names))


def _share(begin: float, minutes: float | None, left: int) -> float:
    """Return when the next case begins no more rounds: its part of the time that is left."""
    now = time.monotonic()
    return float("inf") if minutes is None else now + (begin + minutes * 60 - now) / left


def _write(folder: Path, report: Report) -> None:
    (folder / "peers.json").write_text(json.dumps(report.as_dict(), indent=1) + "\n")
    (folder / "peers.md").write_text(report.markdown())


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
