"""Demitasse beside PyTorch, ONNX Runtime, OpenVINO and OpenCV, on this machine.

    python bench/compare_peers.py                          # everything, an hour and a half
    python bench/compare_peers.py --aims                   # what we have aims for, half an hour
    python bench/compare_peers.py --part forward           # the strongest peers: forward, step,
    python bench/compare_peers.py --part start --few       #   busy, start; --few: some minutes each
    python bench/compare_peers.py --part others --few      # further nets, forward alone
    python bench/compare_peers.py --minutes 20 'lenet:*' 'googlenet:8:*'
    python bench/compare_peers.py --instructions AVX2      # without AVX-512, where engines allow it
    python bench/compare_peers.py --models FOLDER          # as demitasse bench FOLDER --peers
    python bench/compare_peers.py --quick                  # tries the harness, measures nothing

Needs the dependency group ``peers``; ``nox -s bench_peers`` installs it. Tables go to standard
output, progress to standard error, both and all numbers to ``--out``, where results of other cases
stay that the same machine and versions gave.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

from peers import cases
from peers.engines import DEFAULT, PEAK, find
from peers.parts import PARTS, Part
from peers.process import INSTRUCTIONS, LIMITED, ask
from peers.report import Report, Result
from peers.rounds import Options, measure
from peers.start import measure_starts


def main() -> None:
    """Measure what the command line asks for."""
    given = _arguments()
    os.environ[INSTRUCTIONS] = given.instructions
    if given.models:
        command = [sys.executable, "-m", "demitasse", "bench", given.models, "--peers"]
        raise SystemExit(
            subprocess.run(
                [*command, "--batches", "1,8"],
                check=False,
                env=os.environ | LIMITED[given.instructions],
            ).returncode
        )
    part = PARTS.get(given.part, Part((), tuple(DEFAULT)))
    chosen = cases.choose(given.cases, quick=given.quick, aims=given.aims, among=part.cases)
    if given.quick:
        chosen = [replace(case, batch=min(case.batch, 4), scale=4) for case in chosen]
    peak = [] if given.part or given.no_peak else [PEAK]
    engines = [*_engines(given, part), *peak]
    options = Options(
        given.rounds, given.turn, given.threads, given.patience, given.loops or part.loops, _tell
    )
    settings = {"engines": engines, "rounds": given.rounds, "seconds of a turn": given.turn,
                "threads": given.threads, "minutes": given.minutes}  # fmt: skip
    report = _report(given.out, given.threads)
    report.settings[given.part or "cases"] = settings
    begin = time.monotonic()
    for number, case in enumerate(chosen):
        _tell(f"{case} ({number + 1} of {len(chosen)}, {(time.monotonic() - begin) / 60:.0f} min)")
        share = _share(begin, given.minutes, len(chosen) - number)
        if part.start:
            starts = measure_starts(case, engines, given.rounds, given.threads, _tell)
            report.starts = [one for one in report.starts if one.case != str(case)] + starts
        else:
            report.add(Result(case, *measure(case, engines, options, share), options.loops))
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
    parser.add_argument("--part", choices=PARTS, help="what we compare with the strongest peers")
    parser.add_argument("--engines", help="names or patterns")
    parser.add_argument("--loops", type=int, help="measure beside so many busy loops, too")
    parser.add_argument("--minutes", type=float, help="fill about so many with rounds, 3 at least")
    parser.add_argument("--rounds", type=int, help="of a case, at most (7; minutes: 50; few: 3)")
    parser.add_argument("--turn", type=float, help="seconds of an engine's turn (0.8; few: 0.3)")
    parser.add_argument("--threads", type=int, default=_cores(), help="of every engine")
    parser.add_argument("--patience", type=int, help="repetitions of a disturbed turn (5; few: 1)")
    parser.add_argument("--few", action="store_true", help="three short rounds, less patience")
    parser.add_argument("--models", type=Path, help="measure the trained models of this folder")
    parser.add_argument(
        "--instructions", choices=LIMITED, default="native", help="limit all that can be limited"
    )
    parser.add_argument("--quick", action="store_true", help="tiny nets, short turns")
    parser.add_argument("--no-peak", action="store_true", help="do not measure the peak")
    parser.add_argument("--out", type=Path, default=Path(".benchmarks/peers"))
    given = parser.parse_args()
    usual = (50 if given.minutes else 7, 0.8, 5)
    usual = (3, 0.3, 1) if given.few else (3, 0.05, 0) if given.quick else usual
    for name, value in zip(("rounds", "turn", "patience"), usual, strict=True):
        if getattr(given, name) is None:
            setattr(given, name, value)
    return given


def _report(folder: Path, threads: int) -> Report:
    """Return the report that is there already, or a new one.

    Raises:
        SystemExit: The one that is there is of another machine or of other versions.
    """
    folder.mkdir(parents=True, exist_ok=True)
    facts = json.loads(ask("peers.facts", threads=threads))
    for name, value in facts.items():
        _tell(f"{name}: {value}")
    if not (folder / "peers.json").exists():
        return Report(facts, {})
    report = Report.read(folder / "peers.json")
    other = [name for name in facts if name != "date" and report.facts.get(name) != facts[name]]
    if other:
        raise SystemExit(f"{folder} has results with another {other[0]}; give another --out")
    return report


def _engines(given: argparse.Namespace, part: Part) -> list[str]:
    names: list[str] = []
    for pattern in given.engines.split(",") if given.engines else part.engines:
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
