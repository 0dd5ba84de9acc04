"""``-p kept_results``: keep the result of every test in a file, and run what has not passed there.

``KEPT_RESULTS`` names the file, a line of JSON for each test. After a run that was stopped, or in
which tests failed, the same command runs the rest. The summary counts all tests of the file.
"""

import json
import os
from collections import Counter
from pathlib import Path

import pytest

DONE = {"passed", "skipped"}


def _file() -> Path:
    return Path(os.environ["KEPT_RESULTS"])


def _before() -> Path:
    """Return the results of earlier runs, which this run does not change: all processes read it."""
    return _file().with_suffix(".before")


def kept(file: Path) -> dict[str, dict]:
    """Return the last result of each test in a file, by name."""
    return {one["test"]: one for one in map(json.loads, file.read_text("utf-8").splitlines())}


def _is_worker() -> bool:
    return "PYTEST_XDIST_WORKER" in os.environ


def pytest_configure() -> None:
    if _is_worker():
        return
    _file().parent.mkdir(parents=True, exist_ok=True)
    lines = _file().read_text("utf-8").splitlines(keepends=True) if _file().exists() else []
    whole = "".join(line for line in lines if line.endswith("\n"))  # the last may be cut off
    for file in (_file(), _before()):
        file.write_text(whole, encoding="utf-8")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    done = {name for name, one in kept(_before()).items() if one["result"] in DONE}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in done])
    items[:] = [item for item in items if item.nodeid not in done]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if _is_worker() or (report.when != "call" and report.passed):
        return
    one = {"test": report.nodeid, "result": report.outcome, "seconds": round(report.duration, 2)}
    with _file().open("a", encoding="utf-8") as file:
        file.write(json.dumps(one) + "\n")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    results = kept(_file())
    counts = Counter(one["result"] for one in results.values())
    seconds = sum(one["seconds"] for one in results.values())
    each = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    terminalreporter.write_line(f"all runs of {_file().stem}: {each}, {seconds / 60:.0f} minutes")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let a run that had nothing left to do end well."""
    if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and kept(_before()):
        session.exitstatus = pytest.ExitCode.OK
