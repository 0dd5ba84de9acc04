"""Everything to find out on a GPU that was never seen before, in one command and eight minutes.

    python bench/gpu_first_run.py --out report.jsonl             # exit code 1 where a check fails
    python bench/gpu_first_run.py --out report.jsonl             # again: what is left or failed
    python bench/gpu_first_run.py --stand-in --out report.jsonl  # a rehearsal without a GPU

Every section is a process with a time limit of its own, and a line of JSON in the report as soon
as it ends. Sections come in order of importance, until the budget is spent. At the end, those that
failed run again under CUDA_LAUNCH_BLOCKING, and under compute-sanitizer where there is one; the
report keeps the end of what both print.

Runs from a checkout: nothing need be installed but cupy, numpy, click, protobuf and
threadpoolctl. ``--wheels FOLDER`` unpacks further wheels for the run, such as those of
array-api-compat, array-api-strict, lmdb and nvidia-cudnn-frontend. PyTorch is compared with where
it is installed.
"""

import argparse
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

TAIL = 12_000
"""Characters kept of what a section prints."""

GRACE = 20.0
"""Seconds of the budget below which no section begins."""


@dataclass(frozen=True)
class Section:
    """A part of the report.

    Attributes:
        function: MODULE:FUNCTION, called with the device and whether it is a rehearsal; returns
            what goes into the report, and raises AssertionError where a check fails. Or the
            arguments of pytest.
        limit: Seconds.
        hidden: True for sections that run only where they are named.
    """

    function: str | tuple[str, ...]
    limit: float = 60.0
    hidden: bool = False


def _pytest(*arguments: str) -> tuple[str, ...]:
    plain = ("-q", "-W", "default", "--tb=short", "-p", "no:cacheprovider", "--no-header")
    return (*arguments, "--backends=cuda:0", *plain)


SECTIONS = {
    "facts": Section("gpu_facts:facts", 30),
    "random words": Section("gpu_checks:randoms", 30),
    "nets against the host": Section("gpu_checks:nets"),
    "training against the host": Section("gpu_checks:training"),
    "recorded equals queued": Section("gpu_checks:recorded", 90),
    "training in 16 bits": Section("gpu_checks:training_in_16_bits", 90),
    "options against defaults": Section("gpu_checks:options", 60),
    "copies in an iteration": Section("gpu_checks:moved", 30),
    "recorded cases": Section(
        _pytest("tests/layers/test_recorded_cases.py", "tests/training/test_solver_goldens.py"), 90
    ),
    "steps": Section("gpu_steps:steps", 300),
    "options": Section("gpu_steps:options", 90),
    "cuDNN and NaN": Section("gpu_cudnn:not_finite", 30),
    "host microseconds": Section("gpu_times:overheads", 30),
    "GB/s": Section("gpu_times:traffic", 30),
    "TFLOP/s": Section("gpu_times:products", 30),
    "convolutions": Section("gpu_cudnn:convolutions"),
    "milliseconds by layer": Section("gpu_times:layers"),
    "requests of an iteration": Section("gpu_counts:requests"),
    "all tests of devices": Section(
        _pytest("tests", "-n8", "-m", "backend and not slow and not exhaustive"), 300
    ),
    "hangs": Section("gpu_facts:hangs", 2, hidden=True),
    "crashes": Section("gpu_facts:crashes", 30, hidden=True),
    "fails": Section("gpu_facts:fails", 30, hidden=True),
}


# -- one section, in a process of its own ------------------------------------------------------


def run_section(name: str, out: Path, *, stand_in: bool) -> None:
    """Run a section in this process, and write its result as JSON."""
    logging.disable(logging.INFO)
    if stand_in:
        import_module("gpu.package").put_in()
    from demitasse.core.device import Device

    module, _, function = str(SECTIONS[name].function).partition(":")
    work: Callable[[Device, bool], Any] = getattr(import_module(module), function)
    result = work(Device("cuda:0"), stand_in)
    out.write_text(json.dumps(result, default=str), encoding="utf-8")


# -- all of them -------------------------------------------------------------------------------


class FirstRun:
    """Runs sections, and adds a line for each to the report.

    Args:
        report: The file. Sections that it has already, and that did not fail, are left out.
        seconds: The budget.
        stand_in: Whether to rehearse on the stand-in.
        wheels: Folder of wheels to unpack, or None.
    """

    def __init__(
        self, report: Path, seconds: float, *, stand_in: bool, wheels: Path | None
    ) -> None:
        self._report, self._stand_in = report, stand_in
        self._end = time.monotonic() + seconds
        self._environment = dict(os.environ, PYTHONUNBUFFERED="1", DEMITASSE_TF32="off")
        self._folder = Path(tempfile.mkdtemp(prefix="demitasse_first_run_"))
        paths = [str(self._unpacked(wheels))] if wheels else []
        paths += [str(ROOT), str(ROOT / "bench"), str(ROOT / "tests" / "support")]
        given = os.environ.get("PYTHONPATH")
        self._environment["PYTHONPATH"] = os.pathsep.join([*paths, *([given] if given else [])])

    def close(self) -> None:
        """Remove what was unpacked."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, names: list[str]) -> list[str]:
        """Run sections; return those that did not pass, and those that were not begun."""
        done = {line["section"]: line["status"] for line in self._lines()}
        bad, failed = list[str](), list[str]()
        for name in names:
            if done.get(name) == "passed":
                _tell(f"{name}: passed before")
            elif self._left() < GRACE:
                _tell(f"{name}: no time left")
                bad.append(name)
            else:
                line = self._attempt(name)
                self._write(line)
                if line["status"] != "passed":
                    failed.append(name)
        for name in failed:
            self._look_closer(name)
        return bad + failed

    def _look_closer(self, name: str) -> None:
        """Run a section that failed again, so that the report says more."""
        looks = {"launch blocking": ([], {"CUDA_LAUNCH_BLOCKING": "1"})}
        sanitizer = shutil.which("compute-sanitizer")
        if sanitizer and not self._stand_in:
            looks["compute-sanitizer"] = ([sanitizer], {})
        for how, (before, more) in looks.items():
            if self._left() > GRACE:
                self._write(self._attempt(name, how, before, more))

    def _attempt(
        self, name: str, how: str = "", before: list[str] | None = None,
        more: dict[str, str] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Run a section once; return its line of the report."""
        section, out = SECTIONS[name], self._folder / "result.json"
        out.unlink(missing_ok=True)
        environment = self._environment | (more or {})
        stand_in = ["--stand-in"] if self._stand_in else []
        if isinstance(section.function, tuple):
            command = [sys.executable, "-m", "pytest", *section.function, *stand_in]
            environment |= {} if self._stand_in else {"DEMITASSE_REQUIRE_GPU": "1"}
        else:
            command = [sys.executable, __file__, "--section", name, "--out", str(out), *stand_in]
        begin = time.monotonic()
        limit = max(1.0, min(section.limit, self._left()))
        process = subprocess.Popen(
            [*(before or []), *command], cwd=ROOT, env=environment, text=True, errors="replace",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            printed, _ = process.communicate(timeout=limit)
            code = process.returncode
            status = "passed" if code == 0 else "crashed" if code < 0 else "failed"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its own processes too
            printed, _ = process.communicate()
            status, code = "timed out", None
        line: dict[str, Any] = {"section": f"{name}, {how}" if how else name, "status": status}
        line |= {"exit code": code, "seconds": round(time.monotonic() - begin, 1)}
        if out.exists():
            line["result"] = json.loads(out.read_text(encoding="utf-8"))
        if status != "passed" or isinstance(section.function, tuple):
            line["printed"] = printed[-TAIL:]
        _tell(f"{line['section']}: {status}, {line['seconds']} s")
        return line

    def _left(self) -> float:
        return self._end - time.monotonic()

    def _lines(self) -> list[dict[str, Any]]:
        if not self._report.exists():
            return []
        return [json.loads(line) for line in self._report.read_text(encoding="utf-8").splitlines()]

    def _write(self, line: dict[str, Any]) -> None:
        with self._report.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _unpacked(self, wheels: Path) -> Path:
        site = self._folder / "site"
        for wheel in sorted(wheels.glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)
        return site


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="the report, a line of JSON each")
    parser.add_argument("--seconds", type=float, default=480, help="the budget")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="run these sections")
    parser.add_argument("--stand-in", action="store_true", help="rehearse without a GPU")
    parser.add_argument("--wheels", type=Path, help="folder of wheels to unpack for the run")
    parser.add_argument("--section", choices=SECTIONS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.section:
        run_section(given.section, given.out, stand_in=given.stand_in)
        return 0
    names = given.only or [name for name, section in SECTIONS.items() if not section.hidden]
    run = FirstRun(given.out, given.seconds, stand_in=given.stand_in, wheels=given.wheels)
    try:
        bad = run.run(names)
    finally:
        run.close()
    _tell(f"not passed: {', '.join(bad)}" if bad else "all sections passed")
    return int(bool(bad))


if __name__ == "__main__":
    raise SystemExit(main())
