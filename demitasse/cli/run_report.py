"""Pages about training runs, read from JSON lines or logs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from demitasse.cli.training_log import read_log
from demitasse.core.paths import read_failure, read_text
from demitasse.errors import ConfigError, DataError, ErrorCode, PrototxtError
from demitasse.graph.splits import without_splits
from demitasse.io.proto import NetParameter, parse_text
from demitasse.pages import Curve, Page, curve_chart, rate
from demitasse.pages.chart import COLORS
from demitasse.training.tracking.histograms import Histogram, histograms

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
    run = _from_json_lines(path, text) if text.lstrip().startswith("{") else _from_log(path)
    if not any(run.scalars.values()):
        message = "there are no numbers of a run in it"
        raise DataError(message, str(path), code=ErrorCode.MISSING)
    return run


def _from_json_lines(path: Path, text: str) -> RunHistory:
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


def _from_log(path: Path) -> RunHistory:
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


SPEEDS = {
    "images_per_second": "images per second",
    "iterations_per_second": "iterations per second",
    "data_wait": "share of time waiting for data",
}

LOSSES = ("smoothed_loss", "loss")
"""Of these the first that a run has is drawn: it tells more than the loss of single batches."""

WIDE = 30
"""Values that are so many times as large as others are drawn on a log scale."""

MOST_CURVES = 4 * len(COLORS)
"""Curves of one chart that can be told apart: four styles of each colour."""

MOST_CHARTS = 40
"""Charts of outputs; a net can have hundreds, and a page would not open."""

QUANTILES = (
    ("largest", 1.0, 1, 3),
    ("95 %", 0.95, 0, 1),
    ("median", 0.5, 0, 0),
    ("5 %", 0.05, 0, 1),
    ("smallest", 0.0, 1, 3),
)
"""Curves that show how values are distributed: name, share of values below, colour and style."""

Runs = Mapping[str, RunHistory]


def write_run_page(path: Path, histories: Sequence[RunHistory]) -> None:
    """Write a page that compares runs: what they have in common is one chart.

    Raises:
        DemitasseError: Matplotlib is not installed.
        OSError: The page cannot be written.
    """
    runs = _by_name(histories)
    page = Page(f"Training: {', '.join(runs)}")
    _summary(page, runs)
    page.heading("Loss")
    _chart(page, runs, LOSSES, "loss")
    known = dict.fromkeys(name for run in runs.values() for name in run.scalars)
    tests = [name for name in known if name.startswith("test")]
    outputs = [name for name in known if name.startswith("train/")]
    for title, names in (("Tests", tests), ("Outputs in training", outputs)):
        if names:
            page.heading(title)
        for name in names[:MOST_CHARTS]:
            _chart(page, runs, (name,), name)
        if len(names) > MOST_CHARTS:
            page.text(f"{len(names) - MOST_CHARTS} more are not drawn.")
    page.heading("Learning rate")
    _chart(page, runs, ("learning_rate",), "learning rate")
    if known.keys() & SPEEDS.keys():
        page.heading("Speed")
        for name, label in SPEEDS.items():
            _chart(page, runs, (name,), label)
    if "gradient_norm" in known:
        page.heading("Norm of all gradients")
        _chart(page, runs, ("gradient_norm",), "norm")
    for name, run in runs.items():
        _about(page, run, name)
        _distributions(page, run, name)
    page.write(path)


def _by_name(histories: Sequence[RunHistory]) -> dict[str, RunHistory]:
    """Return runs by the names of their files, with as much of the path as tells them apart."""
    named: dict[str, RunHistory] = {}
    stems = [run.path.stem for run in histories]
    for run in histories:
        name = run.path.stem if stems.count(run.path.stem) == 1 else str(run.path)
        named[name] = run
    return named


def _summary(page: Page, runs: Runs) -> None:
    head = ("run", "net", "device", "iteration", "loss", "images/s", "waiting for data")
    rows = [
        (
            name,
            str(run.facts.get("net", "")),
            str(run.facts.get("device", "")),
            f"{max(iteration for values in run.scalars.values() for iteration in values):.0f}",
            _last(run, LOSSES),
            _median(run, "images_per_second", rate),
            _median(run, "data_wait", "{:.1%}".format),
        )
        for name, run in runs.items()
    ]
    page.table(head, rows, numbers=range(3, len(head)))
    tests = dict.fromkeys(n for run in runs.values() for n in run.scalars if n.startswith("test"))
    if tests:
        page.heading("Results of tests")
        found = [
            (name, test, _last(run, (test,)), *_ends(run, test))
            for name, run in runs.items()
            for test in tests
            if run.points(test)
        ]
        page.table(("run", "test", "last", "lowest", "highest"), found, numbers=(2, 3, 4))


def _last(run: RunHistory, names: Sequence[str]) -> str:
    points = next((run.points(name) for name in names if run.points(name)), [])
    return f"{points[-1][1]:.4g}" if points else ""


def _ends(run: RunHistory, name: str) -> tuple[str, str]:
    """Return the lowest and the highest value, each with the first iteration that had it."""
    ends = [(value, -at) for at, value in run.points(name) if math.isfinite(value)]
    if not ends:
        return "", ""
    lowest, at = min(((value, -back) for value, back in ends))
    highest, back = max(ends)
    return f"{lowest:.4g} at {at:.0f}", f"{highest:.4g} at {-back:.0f}"


def _median(run: RunHistory, name: str, form: Callable[[float], str]) -> str:
    values = sorted(value for _, value in run.points(name) if math.isfinite(value))
    return form(values[len(values) // 2]) if values else ""


def _chart(page: Page, runs: Runs, names: Sequence[str], label: str) -> None:
    """Add a chart with a curve for each run that has one of the names; none has: no chart."""
    curves = []
    for color, (title, run) in enumerate(runs.items()):
        points = next((run.points(name) for name in names if run.points(name)), [])
        if points:
            curves.append(Curve(title, points, color, color))  # dashes show what lies below
    if curves:
        scale = _scale([value for curve in curves for _, value in curve.points])
        svg = curve_chart(curves, x_label="iteration", y_label=label, scale=scale)
        page.chart(svg, f"{label} over iterations, a curve for each run")


def _scale(values: Sequence[float]) -> Literal["linear", "log"]:
    drawn = [value for value in values if math.isfinite(value)]
    if drawn and min(drawn) > 0 and max(drawn) > WIDE * min(drawn):
        return "log"
    return "linear"


def _about(page: Page, run: RunHistory, name: str) -> None:
    """Add what is known of one run besides its numbers."""
    facts = [(key, value) for key, value in run.facts.items() if key != "prototxt"]
    rows = [(key, _fact_text(value)) for key, value in (*facts, *run.environment.items()) if value]
    if rows:
        page.heading(f"{name}: made with")
        page.table(("what", "value"), list(dict.fromkeys(rows)))
    if run.snapshots:
        page.heading(f"{name}: snapshots")
        listed = [(f"{at}", file) for file, at in run.snapshots.items()]
        page.table(("iteration", "weights"), listed, numbers=(0,))
    drawing = _drawing(run.facts.get("prototxt"))
    if drawing:
        page.heading(f"{name}: the net")
        page.drawing(drawing, "The layers of the net and the blobs between them")


def _distributions(page: Page, run: RunHistory, name: str) -> None:
    """Add how weights and gradients were distributed: a chart for each parameter."""
    if not run.histograms:
        return
    page.heading(f"{name}: weights and gradients")
    gradients = [name for name in run.histograms if name.startswith("gradients/")]
    norms = [
        Curve(name.removeprefix("gradients/"), _norms(run, name), number, number // len(COLORS))
        for number, name in enumerate(gradients[:MOST_CURVES])
    ]
    if norms:
        scale = _scale([value for curve in norms for _, value in curve.points])
        svg = curve_chart(norms, x_label="iteration", y_label="norm of the gradient", scale=scale)
        page.chart(svg, "The norm of each parameter's gradient over iterations")
    page.text(
        "Of each parameter the median, the ends of the middle 90 %, and the ends of all values."
    )
    for parameter, found in list(run.histograms.items())[:MOST_CHARTS]:
        told = sorted(found.items())
        curves = [
            Curve(label, [(at, one.quantile(share)) for at, one in told], color, style)
            for label, share, color, style in QUANTILES
        ]
        svg = curve_chart(curves, x_label="iteration", y_label=parameter)
        page.chart(svg, f"How {parameter} is distributed, over iterations")
    if len(run.histograms) > MOST_CHARTS:
        page.text(f"{len(run.histograms) - MOST_CHARTS} more are not drawn.")


def _norms(run: RunHistory, name: str) -> list[tuple[float, float]]:
    return [(at, one.norm) for at, one in sorted(run.histograms[name].items())]


def _fact_text(value: object) -> str:
    """Return a fact as text; what is not known is left out of a list of facts."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {one}" for key, one in value.items() if one not in (None, ""))
    return str(value)


def _drawing(prototxt: object) -> str:
    """Return a drawing of a net as SVG; an empty text where there is no net."""
    if not isinstance(prototxt, str):
        return ""
    from demitasse.compat.pycaffe.draw import draw_net

    try:
        net = without_splits(parse_text(prototxt, NetParameter, lenient=True))
        svg = draw_net(net, "TB", "svg").decode()
    except (ConfigError, PrototxtError, ValueError):  # the file is not ours, or of a later version
        return ""
    return svg[svg.index("<svg") :]
