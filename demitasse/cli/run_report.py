"""Pages about training runs, read from JSON lines or logs."""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from demitasse.cli.training_log import read_log
from demitasse.core.paths import read_failure, read_text
from demitasse.errors import ConfigError, DataError, ErrorCode, PrototxtError
from demitasse.graph.splits import without_splits
from demitasse.io.proto import NetParameter, parse_text
from demitasse.pages import Chart, Curve, Page, rate
from demitasse.pages.charts import COLORS
from demitasse.training.tracking.services import Histogram, histograms

MOST_NAMES = 1000
"""Limit of the names of numbers in a run; each is a curve."""

LATEST = 1 << 53
"""Iterations below this are exact as floats."""

COLUMNS = {"NumIters", "Seconds", "LearningRate"}


@dataclass
class RunHistory:
    """Records of a run; numbers and histograms are stored by name, then by iteration.

    Attributes:
        facts: Metadata that was logged at the start of the run.
        environment: Versions and settings of the run, as in ``doctor``.
        snapshots: File of weights -> its iteration.
        best: The file of weights that ``keep_best`` wrote, or empty.
    """

    path: Path
    scalars: dict[str, dict[float, float]] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, object] = field(default_factory=dict)
    histograms: dict[str, dict[float, Histogram]] = field(default_factory=dict)
    snapshots: dict[str, int] = field(default_factory=dict)
    best: str = ""

    def put(self, name: str, iteration: float, value: float) -> None:
        """Store a number; a later number of the same iteration replaces it."""
        if name not in self.scalars and len(self.scalars) == MOST_NAMES:
            message = f"the run has more than {MOST_NAMES} different numbers"
            raise DataError(message, str(self.path), code=ErrorCode.LIMIT, limit=MOST_NAMES)
        self.scalars.setdefault(name, {})[iteration] = value

    def points(self, name: str) -> list[tuple[float, float]]:
        """Return the iterations and values of a name, in order; empty for an unknown name."""
        return sorted(self.scalars.get(name, {}).items())


def read_run(path: Path) -> RunHistory:
    """Read a run; a file that starts with ``{`` has JSON lines, other files are logs."""
    try:
        text = read_text(path, errors="replace")
    except OSError as error:
        message = f"cannot read the run: {read_failure(error, path)}"
        raise DataError(message, str(path), code=ErrorCode.UNREADABLE) from error
    if not text.strip():
        message = "the file is empty: it has no numbers of a run"
        raise DataError(message, str(path), code=ErrorCode.MISSING)
    run = _from_json_lines(path, text) if text.lstrip().startswith("{") else _from_log(path)
    if not any(run.scalars.values()):
        message = "the file has no numbers of a run"
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
                # the run was resumed here: later numbers are of no run
                tables: list[dict[float, Any]]
                tables = [*run.scalars.values(), *run.histograms.values()]
                for table in tables:
                    for late in [one for one in table if one >= iteration]:
                        del table[late]
                run.facts = facts
            case "environment", dict():
                run.environment = facts
            case "distributions", dict():
                for name, found in histograms(facts):
                    if name in run.histograms or len(run.histograms) < MOST_NAMES:
                        run.histograms.setdefault(name, {})[iteration] = found
            case "snapshot", {"weights": str(weights)}:
                run.snapshots[weights] = iteration
            case "best", {"weights": str(weights)}:
                run.snapshots[weights], run.best = iteration, weights
    return run


def _entries(text: str) -> Iterator[tuple[str, int, dict[str, object]]]:
    """Yield the entries of JSON lines; skip broken lines, which killed processes leave."""
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
    for row in log.losses:
        run.put("smoothed_loss", row["NumIters"], row["loss"])
    for row in log.rates:
        run.put("learning_rate", row["NumIters"], row["LearningRate"])
    for row in log.train:
        for name in row.keys() - COLUMNS:
            run.put(f"train/{name}", row["NumIters"], row[name])
    for net, iteration, name, value in log.tests:
        run.put(f"test{net}/{name}", iteration, value)
    return run


def _number(value: object) -> float:
    """Return a number; NaN and infinities are text in the file."""
    try:
        return float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return math.nan


WAITING = "share of time waiting for data"

TRAINING = "training"

OUTPUT = re.compile(r"(?:train|test(\d+))(?:/(.+)|(?<=\d)_loss)", re.DOTALL)
"""Names of an output, and of the loss of a test net."""

LOSSES = ("smoothed_loss", "loss")
"""Names of losses, the preferred first: the smoothed loss has less noise."""

WIDE = 30
"""Ratio of the largest to the smallest value above which the scale is logarithmic."""

MOST_CURVES = 4 * len(COLORS)
"""Limit of curves in a chart: four styles of each colour."""

MOST_CHARTS = 40
"""Limit of charts of outputs: a page with hundreds would not open."""

QUANTILES = (
    ("largest", 1.0, 1, 3), ("95 %", 0.95, 0, 1), ("median", 0.5, 0, 0), ("5 %", 0.05, 0, 1),
    ("smallest", 0.0, 1, 3),
)  # fmt: skip
"""Curves of a distribution: name, quantile, colour and style."""

Runs = Mapping[str, RunHistory]
Groups = dict[str, list[str]]


def write_run_page(path: Path, histories: Sequence[RunHistory]) -> None:
    """Write a page that compares runs, with one chart for each common quantity."""
    stems = [run.path.stem for run in histories]
    runs = {
        run.path.stem if stems.count(run.path.stem) == 1 else str(run.path): run
        for run in histories
    }
    page = Page(f"Training: {', '.join(runs)}")
    _add_summary(page, runs)
    charts = [_chart(runs, label, groups) for label, groups in _quantities(runs).items()]
    charts = [(chart, about) for chart, about in charts if chart.curves]
    _add_charts(page, charts)
    for name, run in runs.items():
        title = f"{name}: " if len(runs) > 1 else ""
        _add_details(page, run, title)
        if run.histograms:
            with page.folded(f"{title}weights and gradients"):
                _add_distributions(page, run)
    page.write(path)


def _add_charts(page: Page, charts: Sequence[tuple[Chart, str]]) -> None:
    page.charts(charts[:MOST_CHARTS])
    if len(charts) > MOST_CHARTS:
        page.text(f"{len(charts) - MOST_CHARTS} more are not shown.")


def _add_summary(page: Page, runs: Runs) -> None:
    head = ("run", "net", "device", "iteration", "loss", "images/s", "data wait")
    rows = [
        (
            name, str(run.facts.get("net", "")), str(run.facts.get("device", "")),
            f"{max(iteration for values in run.scalars.values() for iteration in values):.0f}",
            _last(run, LOSSES), _median(run, "images_per_second", rate),
            _median(run, "data_wait", "{:.1%}".format),
        )
        for name, run in runs.items()
    ]  # fmt: skip
    tests = dict.fromkeys(n for run in runs.values() for n in run.scalars if n.startswith("test"))
    pairs = [(name, run, test) for name, run in runs.items() for test in tests if run.points(test)]
    found = [(name, test, _last(run, (test,)), *_ends(run, test)) for name, run, test in pairs]
    page.table(head, rows, numbers=range(3, len(head)))
    if found:
        page.table(("run", "test", "last", "lowest", "highest"), found, numbers=(2, 3, 4))


def _last(run: RunHistory, names: Sequence[str]) -> str:
    points = _points(run, names)
    return f"{points[-1][1]:.4g}" if points else ""


def _ends(run: RunHistory, name: str) -> tuple[str, str]:
    """Return the lowest and the highest value, each with its first iteration."""
    points = [(at, value) for at, value in run.points(name) if math.isfinite(value)]
    ends = (choose(points, key=itemgetter(1), default=None) for choose in (min, max))
    lowest, highest = ("" if end is None else f"{end[1]:.4g} at {end[0]:.0f}" for end in ends)
    return lowest, highest


def _median(run: RunHistory, name: str, form: Callable[[float], str]) -> str:
    values = sorted(value for _, value in run.points(name) if math.isfinite(value))
    return form(values[len(values) // 2]) if values else ""


def _quantities(runs: Runs) -> dict[str, Groups]:
    """Return the quantities of some runs: title -> group, e.g. training -> names of numbers.

    Training and tests are groups of one quantity. The loss of the only loss layer is that of the
    net.
    """
    outputs: dict[str, Groups] = {}
    losses: Groups = {TRAINING: [*LOSSES]}
    for name in dict.fromkeys(name for run in runs.values() for name in run.scalars):
        if match := OUTPUT.fullmatch(name):
            group = TRAINING if match[1] is None else f"test {match[1]}".removesuffix(" 0")
            groups = outputs.setdefault(match[2], {}) if match[2] else losses
            groups.setdefault(group, []).append(name)
    parts = [name for name in outputs if "loss" in name.lower()]
    if len(parts) == 1:
        for group, names in outputs.pop(parts[0]).items():
            losses.setdefault(group, []).extend(names)
    tested = {name for name, groups in outputs.items() if groups.keys() - {TRAINING}}
    ordered = sorted(outputs.items(), key=lambda item: item[0] not in tested)
    return {
        "loss" if len(parts) < 2 else "total loss": losses, **dict(ordered[: len(tested)]),
        "learning rate": {TRAINING: ["learning_rate"]},
        "images per second": {TRAINING: ["images_per_second"]}, WAITING: {TRAINING: ["data_wait"]},
        "norm of all gradients": {TRAINING: ["gradient_norm"]}, **dict(ordered[len(tested) :]),
    }  # fmt: skip


def _chart(runs: Runs, label: str, groups: Groups) -> tuple[Chart, str]:
    found = {
        group: {title: points for title, run in runs.items() if (points := _points(run, names))}
        for group, names in groups.items()
    }
    found = {group: by_run for group, by_run in found.items() if by_run}
    curves = []
    for number, (group, by_run) in enumerate(found.items()):
        for color, title in enumerate(runs):
            if title not in by_run:
                continue
            if len(runs) == 1:
                curve = Curve(group if len(found) > 1 else label, by_run[title], number, 0)
            elif len(found) == 1:  # dashes let curves below show
                curve = Curve(title, by_run[title], color, color)
            else:
                curve = Curve(f"{title}, {group}", by_run[title], color, number)
            curves.append(curve)
    percent = label == WAITING
    chart = Chart(curves, label, "iteration", _scale(curves), percent=percent)
    return chart, f"{label} over iterations"


def _points(run: RunHistory, names: Sequence[str]) -> list[tuple[float, float]]:
    """Return the points of the first name that the run has."""
    return next((points for name in names if (points := run.points(name))), [])


def _scale(curves: Sequence[Curve]) -> Literal["linear", "log"]:
    drawn = [value for curve in curves for _, value in curve.points if math.isfinite(value)]
    is_wide = drawn and min(drawn) > 0 and max(drawn) > WIDE * min(drawn)
    return "log" if is_wide else "linear"


def _add_details(page: Page, run: RunHistory, title: str) -> None:
    facts = [(key, _fact_text(value)) for key, value in run.facts.items() if key != "prototxt"]
    drawing = _drawing(run.facts.get("prototxt"))
    with page.columns():
        with page.block():
            if facts:
                page.heading(f"{title}settings")
                page.facts(facts)
            if run.snapshots:
                page.heading(f"{title}snapshots")
                page.table(*_snapshots(run), numbers=(0, 2))
            rows = [(key, _fact_text(value)) for key, value in run.environment.items() if value]
            if rows:
                with page.folded(f"{title}environment"):
                    page.table(("what", "value"), rows)
        if drawing:
            with page.block():
                page.heading(f"{title}net")
                page.drawing(drawing, "The layers of the net and the blobs between them")


def _snapshots(run: RunHistory) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return a table of the files, with results of tests in the same iteration and a mark.

    The best file is the one of ``keep_best``; without it, that of the highest accuracy, or else
    the lowest loss.
    """
    tests = [name for name in run.scalars if name.startswith("test")]
    kinds = [name for name in tests if "accuracy" in name] or [n for n in tests if "loss" in n]
    values = run.scalars.get(kinds[0], {}) if kinds else {}
    tested = {file: values[at] for file, at in run.snapshots.items() if at in values}
    ranked = [file for file in tested if not math.isnan(tested[file])]
    choose = max if kinds and "accuracy" in kinds[0] else min
    best = run.best or choose(ranked, key=lambda file: tested[file], default="")
    rows: list[tuple[str, ...]] = []
    for file, at in run.snapshots.items():
        score = f"{tested[file]:.4g}" if file in tested else ""
        rows.append((f"{at}", file, score, "best" if file == best else ""))
    return ("iteration", "weights", kinds[0] if kinds else "", ""), rows


def _add_distributions(page: Page, run: RunHistory) -> None:
    gradients = [name for name in run.histograms if name.startswith("gradients/")]
    norms = []
    for number, name in enumerate(gradients[:MOST_CURVES]):
        points = [(at, one.norm) for at, one in sorted(run.histograms[name].items())]
        style = number // len(COLORS)
        norms.append(Curve(name.removeprefix("gradients/"), points, number, style))
    if norms:
        chart = Chart(norms, "norm of the gradient", "iteration", _scale(norms))
        page.wide_chart(chart, "The norm of each parameter's gradient over iterations")
    page.text("For each parameter: the median, 5 % and 95 % quantiles, smallest and largest value.")
    charts = []
    for parameter, found in run.histograms.items():
        entries = sorted(found.items())
        curves = [
            Curve(label, [(at, one.quantile(share)) for at, one in entries], color, style)
            for label, share, color, style in QUANTILES
        ]
        about = f"Distribution of {parameter} over iterations"
        charts.append((Chart(curves, parameter, "iteration"), about))
    _add_charts(page, charts)


def _fact_text(value: object) -> str:
    """Return metadata as text; skip empty entries of a mapping, separate those of a list."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {one}" for key, one in value.items() if one not in (None, ""))
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


def _drawing(prototxt: object) -> str:
    """Return a drawing of a net as SVG; an empty text without a net."""
    if not isinstance(prototxt, str):
        return ""
    from demitasse.compat.pycaffe.draw import draw_net

    try:
        net = without_splits(parse_text(prototxt, NetParameter, ignore_unknown_fields=True))
        svg = draw_net(net, "TB", "svg").decode()
    except (ConfigError, PrototxtError, ValueError):  # a foreign file, or one of a later version
        return ""
    return svg[svg.index("<svg") :]
