"""What a log of a training run says, ours or Caffe's, in the form of glog.

Source: Caffe, ``tools/extra/parse_log.py`` and ``extract_seconds.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from demitasse.core.paths import read_failure, read_text
from demitasse.errors import DataError, ErrorCode

__all__ = ["Row", "TrainingLog", "read_log", "seconds_of_iterations"]

Row = dict[str, float]
"""``NumIters``, ``Seconds``, ``LearningRate``, and outputs of the net by name."""

HEAD = re.compile(r"[DIWEF](\d\d)(\d\d) (\d\d?):(\d\d?):(\d\d?)\.(\d{1,6}) ")
START = "Solving"

NUMBER = r"([-+]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf))"
ITERATION = re.compile(r"Iteration (\d+)")
OUTPUT = re.compile(rf"(Train|Test) net output #\d+: (\S+) = {NUMBER}")
RATE = re.compile(rf"lr = {NUMBER}")
LOSS = re.compile(rf", loss = {NUMBER}")

MOST_OUTPUTS = 1000
"""Different names of outputs: a table has a column for each in every row."""


@dataclass
class TrainingLog:
    """What was logged.

    Attributes:
        train: Outputs in training, a row for each iteration that told them.
        test: Outputs of tests.
        losses: The smoothed loss, as ``loss``, where the log has it.
        rates: The learning rate, as ``LearningRate``.
    """

    train: list[Row] = field(default_factory=list)
    test: list[Row] = field(default_factory=list)
    losses: list[Row] = field(default_factory=list)
    rates: list[Row] = field(default_factory=list)


def read_log(path: Path) -> TrainingLog:
    """Read a log.

    As Caffe's parser has it, a row has the learning rate that was logged last before it, and the
    first row that of the second.

    Raises:
        DataError: It cannot be read, no run begins in it, or it tells of too many outputs.
    """
    found = TrainingLog()
    names: set[str] = set()
    tables = {"Train": found.train, "Test": found.test}
    iteration: float | None = None
    rate = float("nan")
    for seconds, line in _timed(path):
        begin = ITERATION.search(line)
        if begin:
            iteration = float(begin[1])
        if iteration is None:
            continue
        place = {"NumIters": iteration, "Seconds": seconds}
        if begin and (losses := LOSS.findall(line, begin.end())):
            found.losses.append({**place, "loss": float(losses[-1])})
        if match := RATE.search(line):
            rate = float(match[1])
            found.rates.append({**place, "LearningRate": rate})
        if match := OUTPUT.search(line):
            names.add(match[2])
            if len(names) > MOST_OUTPUTS:
                message = f"it tells of more than {MOST_OUTPUTS} different outputs of nets"
                raise DataError(message, str(path), code=ErrorCode.LIMIT, limit=MOST_OUTPUTS)
            table = tables[match[1]]
            if not table or table[-1]["NumIters"] != iteration or match[2] in table[-1]:
                table.append({**place, "LearningRate": rate})
            table[-1][match[2]] = float(match[3])
    for table in tables.values():
        if len(table) > 1:
            table[0]["LearningRate"] = table[1]["LearningRate"]
    return found


def seconds_of_iterations(path: Path) -> list[float]:
    """Return when each line that names an iteration was logged, in seconds since the run began.

    Raises:
        DataError: It cannot be read, or no run begins in it.
    """
    return [seconds for seconds, line in _timed(path, whole=True) if "Iteration" in line]


def _timed(path: Path, *, whole: bool = False) -> Iterator[tuple[float, str]]:
    """Yield lines and when they were logged, in seconds since the run began.

    Lines without a time are left out, and those before the run began unless the whole is wanted.
    """
    try:
        lines = read_text(path, errors="replace").splitlines()
        year = datetime.fromtimestamp(path.stat().st_mtime).year
    except OSError as error:
        message = f"the log cannot be read: {read_failure(error, path)}"
        raise DataError(message, str(path), code=ErrorCode.UNREADABLE) from error
    times = list(_times(lines, year))
    begun = next((n for n, (_, line) in enumerate(times) if START in line), None)
    if begun is None:
        message = f"no run begins in this log: no line in glog's form says {START!r}"
        raise DataError(message, str(path), code=ErrorCode.MISSING)
    start = times[begun][0]
    for time, line in times[0 if whole else begun + 1 :]:
        yield (time - start).total_seconds(), line


def _times(lines: Iterable[str], year: int) -> Iterator[tuple[datetime, str]]:
    """Yield lines with their times; glog leaves the year out."""
    month_before = 0
    for line in lines:
        match = HEAD.match(line)
        if match is None:
            continue
        month, day, hour, minute, second, micro = map(int, match.groups())
        if month < month_before:
            year += 1
        month_before = month
        try:
            yield datetime(year, month, day, hour, minute, second, micro), line
        except ValueError:  # no date
            continue
