"""Charts of lines, drawn by Matplotlib, as SVG for pages or as files."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from demitasse.core.text import escaped
from demitasse.errors import DemitasseError, ErrorCode

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Line", "drawing", "line_chart", "save_chart", "shown_name", "svg_of"]

INK = "#010203"
"""Drawn in it and then replaced: the page's own colour of text, be it light or dark."""

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d46")
"""Told apart by colour-blind people, on light and on dark ground. Source: Okabe and Ito, 2008."""

LONGEST = 18
"""Letters of a place's name that are shown; the end tells more than the beginning."""

SHORT = 60
"""Letters of all places' names that fit side by side."""

PLAIN = (1e-2, 1e6)
"""Numbers between these are written out along a log scale; others as powers of ten."""

STYLES: tuple[Any, ...] = ("-", "--", "-.", ":")


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    Attributes:
        name: What the legend says.
        values: A value for each place; None where there is none.
        color: Number of its colour; lines that belong together share one. None: its own.
        style: Number of its style, solid being 0. None: solid while there are colours.
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
    """Return a chart as SVG text for a page, whose colour of text it takes.

    Args:
        lines: What is drawn.
        places: Names of the places along the x axis.
        x_label: What the places are, where their names do not tell.
        y_label: What the y axis shows.
        scale: Of the y axis; on a log scale nothing is drawn for 0.
        limit: Where a dotted line goes from left to right.

    Raises:
        DemitasseError: Matplotlib is not installed.
    """
    return svg_of(_figure(lines, places, (x_label, y_label), scale, limit))


def svg_of(figure: Figure) -> str:
    """Return a figure as SVG text for a page, whose colour of text it takes."""
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
    """Write a chart as a file; its ending says in which format (.svg, .png, .pdf).

    Raises:
        DemitasseError: Matplotlib is not installed, or has no such format.
        OSError: The file cannot be written.
    """
    from demitasse.core.atomic import atomic_write

    figure = _figure(lines, places, (x_label, y_label), scale, None)
    kind = path.suffix.removeprefix(".")
    if kind not in figure.canvas.get_supported_filetypes():
        message = f"charts cannot be written as {path.suffix!r}; .svg and .png are usual"
        raise DemitasseError(message, code=ErrorCode.UNSUPPORTED, got=path.suffix)
    with atomic_write(path) as file:
        _save(figure, file, kind, facecolor="white")


def _save(figure: Figure, file: IO[Any], kind: str, **options: Any) -> None:
    """Write a figure; the same one is the same bytes in every run."""
    import matplotlib as mpl

    # text stays text, so that a page can be searched; ids are made when the figure is written
    rules: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "demitasse"}
    if kind in {"svg", "pdf"}:
        options["metadata"] = {"Date" if kind == "svg" else "CreationDate": None}
    with mpl.rc_context(rules):
        figure.savefig(file, format=kind, **options)


@contextmanager
def drawing() -> Iterator[Figure]:
    """Yield a figure to draw on, in the colours and sizes of all charts.

    Raises:
        DemitasseError: Matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        message = "drawing charts needs Matplotlib; run: pip install 'demitasse[plot]'"
        raise DemitasseError(message, code=ErrorCode.UNAVAILABLE, extra="plot") from None
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
    """Return a name as text to be drawn: without control characters, formulas and great length."""
    shown = escaped(text, one_line=True)
    if len(shown) > longest:
        shown = f"…{shown[1 - longest :]}"
    return shown.replace("$", r"\$")
