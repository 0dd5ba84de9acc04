"""A training run from its file of JSON lines, or from a log, ours or Caffe's."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from demitasse.cli.training_log import read_log
from demitasse.core.paths import read_failure, read_text
from demitasse.errors import DataError, ErrorCode
from demitasse.training.tracking.histograms import Histogram, histograms

__all__ = ["RunHistory", "read_run"]

MOST_NAMES = 1000
"""Different names of numbers in a run; each is a curve."""

LATEST = 1 << 53
"""Iterations below this can be told apart as floats; no run has had so many."""

COLUMNS = {"NumIters", "Seconds", "LearningRate"}


@dataclass
class RunHistory:
    """What is known of a run.

    Attributes:
        path: The file it was read from.
        scalars: Numbers by name, then by iteration.
        facts: What was told when the run began, and later of it.
        environment: What it was made with, as ``doctor`` tells it.
        histograms: Of each parameter and its gradient, by name, then by iteration.
        snapshots: Files of weights and the iterations they were written at.
    """

    path: Path
    scalars: dict[str, dict[float, float]] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, object] = field(default_factory=dict)
    histograms: dict[str, dict[float, Histogram]] = field(default_factory=dict)
    snapshots: dict[str, int] = field(default_factory=dict)

    def put(self, name: str, iteration: float, value: float) -> None:
        """Take a number; one that comes later counts.

        Raises:
            DataError: There are too many names.
        """
        if name not in self.scalars and len(self.scalars) == MOST_NAMES:
            message = f"it tells of more than {MOST_NAMES} different numbers"
            raise DataError(message, str(self.path), code=ErrorCode.LIMIT, limit=MOST_NAMES)
        self.scalars.setdefault(name, {})[iteration] = value

    def put_histogram(self, name: str, iteration: float, found: Histogram) -> None:
        """Take a histogram; those of more names than are drawn are left out."""
        if name in self.histograms or len(self.histograms) < MOST_NAMES:
            self.histograms.setdefault(name, {})[iteration] = found

    def points(self, name: str) -> list[tuple[float, float]]:
        """Return iterations and values of a name, in order; none where there is no such name."""
        return sorted(self.scalars.get(name, {}).items())

    def go_back(self, iteration: float) -> None:
        """Forget what was told of this and later iterations: the run goes on from here."""
        tables: list[dict[float, float] | dict[float, Histogram]]
        tables = [*self.scalars.values(), *self.histograms.values()]
        for values in tables:
            for late in [one for one in values if one >= iteration]:
                del values[late]


def read_run(path: Path) -> RunHistory:
    """Read a run; the file's first character says in which form.

    Raises:
        DataError: It cannot be read, or holds no run.
    """
    try:
        text = read_text(path, errors="replace")
    except OSError as error:
        message = f"the run cannot be read: {read_failure(error, path)}"
        raise DataError(message, str(path), code=ErrorCode.UNREADABLE) from error
    run = _of_lines(path, text) if text.lstrip().startswith("{") else _of_log(path)
    if not any(run.scalars.values()):
        message = "there are no numbers of a run in it"
        raise DataError(message, str(path), code=ErrorCode.MISSING)
    return run


def _of_lines(path: Path, text: str) -> RunHistory:
    run = RunHistory(path)
    for kind, iteration, entry in _entries(text):
        facts = entry.get("facts")
        match kind, facts:
            case "scalars", _:
                values = entry.get("values")
                for name, value in values.items() if isinstance(values, dict) else ():
                    run.put(str(name), iteration, _number(value))
            case "begin", dict():
                run.go_back(iteration)
                run.facts = facts
            case "environment", dict():
                run.environment = facts
            case "distributions", dict():
                for name, found in histograms(facts):
                    run.put_histogram(name, iteration, found)
            case "snapshot", {"weights": str(weights)}:
                run.snapshots[weights] = iteration
    return run


def _entries(text: str) -> Iterator[tuple[str, int, dict[str, object]]]:
    """Yield what lines say; half a line, which a killed process leaves, is passed over."""
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        match entry:
            case {"kind": str(kind), "iteration": int(iteration)} if abs(iteration) < LATEST:
                yield kind, iteration, entry


def _of_log(path: Path) -> RunHistory:
    run, log = RunHistory(path), read_log(path)
    for rows, known in ((log.losses, {"loss": "smoothed_loss"}),
                        (log.rates, {"LearningRate": "learning_rate"})):  # fmt: skip
        for row in rows:
            for column, name in known.items():
                run.put(name, row["NumIters"], row[column])
    for rows, group in ((log.train, "train"), (log.test, "test0")):
        for row in rows:
            for name in row.keys() - COLUMNS:
                run.put(f"{group}/{name}", row["NumIters"], row[name])
    return run


def _number(value: object) -> float:
    """Return a number; those that JSON lacks stand there as text."""
    try:
        return float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return math.nan
