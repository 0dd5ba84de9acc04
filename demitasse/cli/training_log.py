"""Numbers of training logs in glog's format, Caffe's or ours, and charts of them.

Source: Caffe, ``tools/extra/parse_log.py``, ``extract_seconds.py`` and
``plot_training_log.py.example``.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise, product
from pathlib import Path

from demitasse.core.paths import read_failure, read_text
from demitasse.errors import DataError, ErrorCode
from demitasse.pages import Chart, Curve

Row = dict[str, float]
"""``NumIters``, ``Seconds``, ``LearningRate``, and outputs of the net by name."""

HEAD = re.compile(r"[DIWEF](\d\d)(\d\d) (\d\d?):(\d\d?):(\d\d?)\.(\d{1,6}) ")
START = "Solving"

NUMBER = r"([-+]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf))"
ITERATION = re.compile(r"Iteration (\d+)")
TEST_NET = re.compile(r"Testing net \(#(\d{1,9})\)")
OUTPUT = re.compile(rf"(Train|Test) net output #(\d+): (\S+) = {NUMBER}")
RATE = re.compile(rf"lr = {NUMBER}")
LOSS = re.compile(rf", loss = {NUMBER}")

MOST_OUTPUTS = 1000
"""Limit of output names: each is a column of a table, in every row."""


@dataclass
class TrainingLog:
    """Numbers of a training log.

    Attributes:
        train, test: Outputs in training and of tests, a row for each iteration that logged outputs.
        losses: The smoothed loss, as ``loss``, if the log has a smoothed loss.
        rates: The learning rate, as ``LearningRate``.
        tests: Number of the test net, iteration, name and value of each output in a test.
    """

    train: list[Row] = field(default_factory=list)
    test: list[Row] = field(default_factory=list)
    losses: list[Row] = field(default_factory=list)
    rates: list[Row] = field(default_factory=list)
    tests: list[tuple[int, float, str, float]] = field(default_factory=list)


def read_log(path: Path) -> TrainingLog:
    """Read a log.

    As in Caffe's parser, a row has the learning rate logged last before the row; the first row has
    the rate of the second. So have rows before the first rate, as those of several test nets. Of an
    output with several values, the last one counts.
    """
    found = TrainingLog()
    names: set[str] = set()
    tables = {"Train": found.train, "Test": found.test}
    iteration: float | None = None
    rate, last, net = float("nan"), "", 0
    for seconds, line in _timed(path):
        begin = ITERATION.search(line)
        if begin:
            iteration = float(begin[1])
        if iteration is None:
            continue
        place = {"NumIters": iteration, "Seconds": seconds}
        if begin and (losses := LOSS.findall(line, begin.end())):
            found.losses.append({**place, "loss": float(losses[-1])})
        if match := TEST_NET.search(line):
            net = int(match[1])
        if match := RATE.search(line):
            rate = float(match[1])
            found.rates.append({**place, "LearningRate": rate})
        if match := OUTPUT.search(line):
            phase, number, name, value = match.groups()
            names.add(name)
            if len(names) > MOST_OUTPUTS:
                message = f"the log has more than {MOST_OUTPUTS} different outputs of nets"
                raise DataError(message, str(path), code=ErrorCode.LIMIT, limit=MOST_OUTPUTS)
            table = tables[phase]
            row = table[-1] if table else {}
            if row.get("NumIters") != iteration or (
                name in row and (number == "0" or name != last)
            ):
                table.append({**place, "LearningRate": rate})
            table[-1][name], last = float(value), name
            if phase == "Test":
                found.tests.append((net, iteration, name, float(value)))
    for table in tables.values():
        for row, following in reversed(list(pairwise(table))):
            if row is table[0] or math.isnan(row["LearningRate"]):
                row["LearningRate"] = following["LearningRate"]
    return found


def seconds_of_iterations(path: Path) -> list[float]:
    """Return the time of each line that names an iteration, in seconds since the run started."""
    return [seconds for seconds, line in _timed(path, whole=True) if "Iteration" in line]


def _timed(path: Path, *, whole: bool = False) -> Iterator[tuple[float, str]]:
    """Yield the seconds since the run started, and the text, of each line with a time.

    Lines before the start of the run are skipped unless ``whole``.
    """
    try:
        lines = read_text(path, errors="replace").splitlines()
        year = datetime.fromtimestamp(path.stat().st_mtime).year
    except OSError as error:
        message = f"cannot read the log: {read_failure(error, path)}"
        raise DataError(message, str(path), code=ErrorCode.UNREADABLE) from error
    times = list(_times(lines, year))
    start_line = next((n for n, (_, line) in enumerate(times) if START in line), None)
    if start_line is None:
        message = f"the log has no start of a run: no line in glog's format has {START!r}"
        if not any(map(str.strip, lines)):
            message = "the log is empty"
        elif lines[0].startswith("{"):
            message = "got JSON lines, expected a training log; draw them by `demitasse report`"
        raise DataError(message, str(path), code=ErrorCode.MISSING)
    start = times[start_line][0]
    for time, line in times[0 if whole else start_line + 1 :]:
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
        except ValueError:  # not a date
            continue


QUANTITIES = ("Test accuracy", "Test loss", "Train learning rate", "Train loss")
AXES = {"NumIters": "Iters", "Seconds": "Seconds"}
"""Columns of the x axis, and their titles."""


def _points(log: TrainingLog, quantity: str, axis: str) -> list[tuple[float, float]]:
    """Return the points of the first column whose name contains the quantity's."""
    rows, part = {
        "Test accuracy": (log.test, "acc"),
        "Test loss": (log.test, "loss"),
        "Train learning rate": (log.rates, "LearningRate"),
        "Train loss": (log.losses or log.train, "loss"),
    }[quantity]
    name = next((name for row in rows for name in row if part in name), "")
    return [(row[axis], row[name]) for row in rows if name in row]


def draw_chart(kind: int, logs: Sequence[Path], out: Path) -> None:
    """Draw a chart of some logs, each a line; ``kind`` is Caffe's number of the chart."""
    quantity, axis = list(product(QUANTITIES, AXES))[kind]
    curves = []
    for path in logs:
        points = _points(read_log(path), quantity, axis)
        if not points:
            message = f"the log has no {quantity.lower()}"
            raise DataError(message, str(path), code=ErrorCode.MISSING, got=quantity)
        curves.append(Curve(path.stem, points))
    Chart(curves, quantity, AXES[axis]).save(out)
