"""Charts of training logs, drawn by Matplotlib.

Source: Caffe, ``tools/extra/plot_training_log.py.example``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from demitasse.cli.training_log import Row, TrainingLog, read_log
from demitasse.core.atomic import atomic_write
from demitasse.errors import DataError, ErrorCode

__all__ = ["draw_chart"]


@dataclass(frozen=True)
class Chart:
    """One of Caffe's kinds of charts.

    Attributes:
        what: What it shows.
        against: Name of the column it is drawn over.
    """

    what: str
    against: str

    def points(self, log: TrainingLog) -> list[tuple[float, float]]:
        """Return the points of a log."""
        rows, part = {
            "Test accuracy": (log.test, "acc"),
            "Test loss": (log.test, "loss"),
            "Train learning rate": (log.rates, "LearningRate"),
            "Train loss": (log.losses or log.train, "loss"),
        }[self.what]
        name = _column(rows, part)
        return [(row[self.against], row[name]) for row in rows if name in row]


KINDS = ("Test accuracy", "Test loss", "Train learning rate", "Train loss")
CHARTS = tuple(Chart(what, against) for what in KINDS for against in ("NumIters", "Seconds"))
AXES = {"NumIters": "Iters", "Seconds": "Seconds"}


def _column(rows: Sequence[Row], part: str) -> str:
    """Return the first column with ``part`` in its name; an empty name where there is none."""
    return next((name for row in rows for name in row if part in name), "")


def draw_chart(kind: int, logs: Sequence[Path], out: Path) -> None:
    """Draw one kind of chart of some logs.

    Args:
        kind: Which of ``CHARTS``.
        logs: The logs, each a line of the chart.
        out: The image to write; its ending says in which format.

    Raises:
        DataError: Matplotlib is not installed, or a log cannot be read or has nothing to draw.
        OSError: The image cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        message = "drawing charts needs Matplotlib; run: pip install 'demitasse[plot]'"
        raise DataError(message, code=ErrorCode.UNAVAILABLE, extra="plot") from None
    chart = CHARTS[kind]
    figure = Figure()
    axes = figure.add_subplot()
    for path in logs:
        points = chart.points(read_log(path))
        if not points:
            message = f"there is no {chart.what.lower()} in this log"
            raise DataError(message, str(path), code=ErrorCode.MISSING, got=chart.what)
        marker = "." if len(points) < 100 else None
        axes.plot(*zip(*points, strict=True), marker=marker, linewidth=0.75, label=path.stem)
    axes.set(xlabel=AXES[chart.against], ylabel=chart.what)
    axes.set_title(f"{chart.what} vs. {AXES[chart.against]}")
    axes.legend(loc="lower right" if "accuracy" in chart.what else "upper right")
    kind_of_image = out.suffix[1:] or None
    with atomic_write(out) as file:
        figure.savefig(file, format=kind_of_image)
