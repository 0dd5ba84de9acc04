"""Charts of lines and curves, drawn by Matplotlib, as SVG for pages or as files."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from demitasse.core.extras import missing_extra
from demitasse.core.text import escaped
from demitasse.errors import DemitasseError, ErrorCode

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#010203"
"""Placeholder colour, replaced by the page's text colour for light and dark pages."""

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d46")
"""Colours for colour-blind people, on light and dark ground. Source: Okabe and Ito, 2008."""

LONGEST = 18
"""Characters of a label on the x axis; the end of a name is shown."""

SHORT = 60
"""Characters of all labels that fit side by side."""

PLAIN = (1e-2, 1e6)
"""Range of plain numbers on a log scale; other numbers are powers of ten."""

STYLES: tuple[Any, ...] = ("-", "--", "-.", ":")


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    Attributes:
        name: Name in the legend.
        values: A value for each place, or None.
        color: Index of the colour; None for a new colour.
        style: Index of the style, 0 is solid; None for solid while there are new colours.
    """

    name: str
    values: Sequence[float | None]
    color: int | None = None
    style: int | None = None


def line_chart(
    lines: Sequence[Line],
    places: Sequence[str],
    *,
    x_label: str = "",
    y_label: str,
    scale: Literal["linear", "log"] = "linear",
    limit: float | None = None,
) -> str:
    """Return a chart as SVG text, in the text colour of its page.

    Args:
        lines: The lines.
        places: Labels along the x axis.
        x_label: Title of the x axis.
        y_label: Title of the y axis.
        scale: Scale of the y axis; a log scale skips 0.
        limit: Value of a dotted horizontal line, or None.

    Raises:
        DemitasseError: Matplotlib is not installed.
    """
    return svg_of(_figure(lines, places, (x_label, y_label), scale, limit))


def svg_of(figure: Figure) -> str:
    """Return a figure as SVG text, in the text colour of its page."""
    text = io.StringIO()
    _save(figure, text, "svg", transparent=True)
    svg = text.getvalue()
    return svg[svg.index("<svg") :].replace(INK, "currentColor")


def save_chart(
    path: Path,
    lines: Sequence[Line],
    places: Sequence[str],
    *,
    x_label: str = "",
    y_label: str,
    scale: Literal["linear", "log"] = "linear",
) -> None:
    """Write a chart to a file; the extension sets the format (.svg, .png, .pdf).

    Raises:
        DemitasseError: Matplotlib is not installed, or does not support the format.
        OSError: The file cannot be written.
    """
    from demitasse.core.atomic import atomic_write

    figure = _figure(lines, places, (x_label, y_label), scale, None)
    kind = path.suffix.removeprefix(".")
    if kind not in figure.canvas.get_supported_filetypes():
        message = f"got the extension {path.suffix!r}, expected e.g. .svg or .png"
        raise DemitasseError(message, code=ErrorCode.UNSUPPORTED, got=path.suffix)
    with atomic_write(path) as file:
        _save(figure, file, kind, facecolor="white")


def _save(figure: Figure, file: IO[Any], kind: str, **options: Any) -> None:
    """Write a figure, with the same bytes in every run."""
    import matplotlib as mpl

    # keep text as text, for search in pages; the salt makes ids reproducible
    rules: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "demitasse"}
    if kind in {"svg", "pdf"}:
        options["metadata"] = {"Date" if kind == "svg" else "CreationDate": None}
    with mpl.rc_context(rules):
        figure.savefig(file, format=kind, **options)


@contextmanager
def drawing() -> Iterator[Figure]:
    """Yield an empty figure with the colours and sizes of all charts.

    Raises:
        DemitasseError: Matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise missing_extra(DemitasseError, "drawing charts", "Matplotlib", "plot") from None
    inks = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    rules: dict[Any, Any] = {"font.size": 9} | dict.fromkeys(inks, INK)
    with mpl.rc_context(rules):
        yield Figure(figsize=(9.5, 3.6), layout="constrained")


def _figure(
    lines: Sequence[Line],
    places: Sequence[str],
    labels: tuple[str, str],
    scale: Literal["linear", "log"],
    limit: float | None,
) -> Figure:
    with drawing() as figure:
        from matplotlib.ticker import LogLocator, NullLocator

        axes = figure.add_subplot()
        for number, line in enumerate(lines):
            values = [float("nan") if v is None or (scale == "log" and v <= 0) else v
                      for v in line.values]  # fmt: skip
            color = number if line.color is None else line.color
            style = color // len(COLORS) if line.style is None else line.style
            axes.plot(
                range(len(places)),
                values,
                label=shown_name(line.name, len(line.name)),
                color=COLORS[color % len(COLORS)],
                linestyle=STYLES[style % len(STYLES)],
                linewidth=1.2,
                marker="o" if len(places) < 80 else None,
                markersize=3.5,
            )
        if limit is not None:
            axes.axhline(limit, color=INK, linewidth=0.8, linestyle=":")
        axes.set_yscale(scale)
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1])
        drawn = [v for line in lines for v in line.values if v is not None and v > 0]
        if scale == "log" and PLAIN[0] < min(drawn, default=0) and max(drawn) < PLAIN[1]:
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_locator(NullLocator())
        step = max(1, -(-len(places) // 40))
        named = [shown_name(place) for place in places[::step]]
        ticks = range(0, len(places), step)
        if sum(map(len, named)) < SHORT:
            axes.set_xticks(ticks, named)
        else:
            axes.set_xticks(ticks, named, rotation=60, ha="right", fontsize=7)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        axes.grid(axis="y", linewidth=0.3, color=INK, alpha=0.4)
        if len(lines) > 1:
            figure.legend(loc="outside upper right", ncols=4, frameon=False)
    return figure


def shown_name(text: str, longest: int = LONGEST) -> str:
    """Return a name for a drawing, without control characters and formulas, shortened."""
    shown = escaped(text, one_line=True)
    if len(shown) > longest:
        shown = f"…{shown[1 - longest :]}"
    return shown.replace("$", r"\$")


MOST_POINTS = 1000
"""Limit of points of a curve; longer curves keep the extremes of each segment."""

LARGEST = 1e300
"""Limit of values; on a log scale values must be above its inverse. Axes need some margin."""

LONGEST_LABEL = 50
"""Characters of the y axis' title; the end of a name is shown."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Curve:
    """One curve of a chart.

    Attributes:
        name: Name in the legend.
        points: Pairs of ascending x and y.
        color: Index of the colour.
        style: Index of the style, 0 is solid.
    """

    name: str
    points: Sequence[Point]
    color: int = 0
    style: int = 0


def curve_chart(
    curves: Sequence[Curve],
    *,
    x_label: str,
    y_label: str,
    scale: Literal["linear", "log"] = "linear",
) -> str:
    """Return a chart as SVG text, in the text colour of its page.

    NaN, infinite and huge values leave gaps; so do values up to 0 on a log scale.

    Raises:
        DemitasseError: Matplotlib is not installed.
    """
    with drawing() as figure:
        axes = figure.add_subplot()
        for curve in curves:
            points = [(x, _drawable(y, scale)) for x, y in thinned(curve.points)]
            axes.plot(
                [x for x, _ in points],
                [y for _, y in points],
                label=shown_name(curve.name, len(curve.name)),
                color=COLORS[curve.color % len(COLORS)],
                linestyle=STYLES[curve.style % len(STYLES)],
                linewidth=1.2,
                marker="o" if len(points) < 40 else None,
                markersize=3,
            )
        axes.set_yscale(scale)
        axes.set_xlabel(x_label)
        axes.set_ylabel(shown_name(y_label, LONGEST_LABEL))
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        axes.grid(axis="y", linewidth=0.3, color=INK, alpha=0.4)
        if len(curves) > 1:
            figure.legend(loc="outside upper right", ncols=4, frameon=False)
    return svg_of(figure)


def thinned(points: Sequence[Point]) -> list[Point]:
    """Return at most ``MOST_POINTS`` points: the lowest and the highest of each segment."""
    if len(points) <= MOST_POINTS:
        return list(points)
    size = math.ceil(2 * len(points) / MOST_POINTS)
    found = []
    for begin in range(0, len(points), size):
        segment = [point for point in points[begin : begin + size] if math.isfinite(point[1])]
        ends = {min(segment, key=_y), max(segment, key=_y)} if segment else set()
        found += sorted(ends) or [points[begin]]
    return found


def _y(point: Point) -> float:
    return point[1]


def _drawable(value: float, scale: str) -> float:
    drawn = abs(value) < LARGEST and (scale == "linear" or value > 1 / LARGEST)
    return value if drawn else math.nan
