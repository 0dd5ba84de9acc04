"""Charts of curves, drawn by Matplotlib, as SVG for pages or as files."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from demitasse.core.extras import needs_extra
from demitasse.core.text import escaped
from demitasse.errors import DemitasseError, ErrorCode

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

INK = "#010203"
"""Placeholder colour, replaced by the page's text colour for light and dark pages."""

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d46")
"""Colours for colour-blind people, on light and dark ground. Source: Okabe and Ito, 2008."""

STYLES: tuple[Any, ...] = ("-", "--", "-.", ":")

WIDE, NARROW = (9.5, 3.6), (4.2, 2.6)
"""Width and height without legend, in inches; letters of the narrow one suit a phone."""

POINTS = 72
"""Points of an inch: the unit of SVG files."""

KEY, ROW = 34, 14
"""Space for a sample of a curve with its margins, and for a row of a legend, in points."""

LONGEST = 18
"""Characters of a label on the x axis; the end of a name is shown."""

LONGEST_LABEL = 42
"""Characters of the y axis' title; the end of a name is shown."""

PLAIN = (1e-2, 1e6)
"""Range of plain numbers on a log scale; other numbers are powers of ten."""

MOST_POINTS = 1000
"""Limit of points of a curve; longer curves keep the extremes of each segment."""

MOST_TIPS = 60
"""Limit of tooltips; they stand beside each other along the x axis."""

LARGEST = 1e300
"""Limit of values; on a log scale values must be above its inverse. Axes need some margin."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Curve:
    """One curve of a chart."""

    name: str  # in the legend and tooltips; empty for neither
    points: Sequence[Point]  # in the order of x
    color: int | None = None  # its index; None for a new colour
    style: int | None = None  # its index, 0 is solid; None for solid while there are new colours


def has_format(path: Path) -> bool:
    """Return True if charts can be written to files with this extension."""
    return path.suffix[1:] in _new_figure(NARROW).canvas.get_supported_filetypes()


def _new_figure(size: tuple[float, float]) -> Figure:
    """Return an empty figure of a width and height in inches."""
    with needs_extra(DemitasseError, "drawing charts", "Matplotlib", "plot"):
        from matplotlib.figure import Figure
    return Figure(figsize=size, layout="constrained", dpi=POINTS)


@dataclass(frozen=True)
class Chart:
    """A chart of curves.

    NaN, infinite and huge values leave gaps; so do values up to 0 on a log scale. A linear y axis
    of values from 0 on does not run below 0.
    """

    curves: Sequence[Curve]
    y_label: str  # above the axis
    x_label: str = ""
    scale: Literal["linear", "log"] = "linear"  # of the y axis
    places: Sequence[str] = ()  # labels for x = 0, 1, ...; empty for numbers
    limit: float | None = None  # value of a dotted horizontal line
    percent: bool = False  # show values from 0 to 1 as percentages

    def svg(self, *, wide: bool = False) -> str:
        """Return the chart as SVG text with tooltips, in the text colour of its page."""
        figure, axes = self._figure(WIDE if wide else NARROW)
        text = io.StringIO()
        _save(figure, text, "svg", transparent=True)
        svg = text.getvalue().replace(INK, "currentColor")
        tips = self._tips(axes, figure.bbox.height)
        return "".join([svg[svg.index("<svg") : svg.rindex("</svg>")], *tips, "</svg>"])

    def save(self, path: Path) -> None:
        """Write the chart to a file; the extension sets the format (.svg, .png, .pdf)."""
        from demitasse.core.atomic import atomic_write

        if not has_format(path):
            message = f"got the extension {path.suffix!r}, expected e.g. .svg or .png"
            raise DemitasseError(message, code=ErrorCode.UNSUPPORTED, got=path.suffix)
        figure, _ = self._figure(WIDE)
        with atomic_write(path) as file:
            _save(figure, file, path.suffix[1:], facecolor="white", dpi=100)

    def _figure(self, size: tuple[float, float]) -> tuple[Figure, Axes]:
        figure = _new_figure(size)
        import matplotlib as mpl

        inks = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
        rules: dict[Any, Any] = {"font.size": 9} | dict.fromkeys(inks, INK)
        with mpl.rc_context(rules):
            axes = figure.add_subplot()
            lines = [self._plot(axes, curve, number) for number, curve in enumerate(self.curves)]
            if self.limit is not None:
                axes.axhline(self.limit, color=INK, linewidth=0.8, linestyle=":")
            axes.set_xlabel(self.x_label)
            # above the axis: beside it a long label would be cut where names of places are long
            axes.set_title(_shown_name(self.y_label, LONGEST_LABEL), loc="left", fontsize=9)
            self._scale_y(axes)
            if self.places:
                self._name_places(axes, size[0])
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(axis="y", linewidth=0.3, color=INK, alpha=0.4)
            _add_legend(figure, lines, [curve.name for curve in self.curves])
        return figure, axes

    def _plot(self, axes: Axes, curve: Curve, number: int) -> Line2D:
        color = number if curve.color is None else curve.color
        style = color // len(COLORS) if curve.style is None else curve.style
        points = thinned(curve.points)
        least = 1 / LARGEST if self.scale == "log" else -LARGEST
        ys = [y if least < y < LARGEST else math.nan for _, y in points]
        [line] = axes.plot(
            [x for x, _ in points], ys, color=COLORS[color % len(COLORS)],
            linestyle=STYLES[style % len(STYLES)], linewidth=1.2,
            marker="o" if len(points) < 40 else None, markersize=3, clip_on=False,
        )  # fmt: skip
        return line

    def _scale_y(self, axes: Axes) -> None:
        from matplotlib.ticker import LogLocator, NullLocator, PercentFormatter

        ys = [y for curve in self.curves for _, y in curve.points if abs(y) < LARGEST]
        axes.set_yscale(self.scale)
        if self.scale == "linear" and min(ys, default=0) >= 0:
            axes.set_ylim(bottom=max(0, axes.get_ylim()[0]))
        if self.percent:
            axes.set_ylim(top=min(1, axes.get_ylim()[1]))
            axes.yaxis.set_major_formatter(PercentFormatter(1))
        positive = [y for y in ys if y > 0]
        low, high = min(positive, default=0), max(positive, default=0)
        if self.scale == "log" and PLAIN[0] < low and high < min(PLAIN[1], 1e3 * low):
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_locator(NullLocator())

    def _name_places(self, axes: Axes, width: float) -> None:
        step = max(1, -(-len(self.places) // int(4 * width)))
        named = [_shown_name(place) for place in self.places[::step]]
        ticks = range(0, len(self.places), step)
        if sum(map(len, named)) < 6 * width:  # they fit side by side
            axes.set_xticks(ticks, named)
        else:
            axes.set_xticks(ticks, named, rotation=60, ha="right", fontsize=7)

    def _tips(self, axes: Axes, height: float) -> Iterator[str]:
        """Yield transparent bands with the values at their x as titles, which browsers show."""
        curves = {curve.name: dict(thinned(curve.points)) for curve in self.curves if curve.name}
        xs = sorted({x for points in curves.values() for x in points})
        step = max(1, -(-len(xs) // MOST_TIPS))
        box = axes.bbox
        at = [float(axes.transData.transform((x, 1))[0]) for x in xs[::step]]
        edges = [box.x0, *((a + b) / 2 for a, b in pairwise(at)), box.x1]
        for number, x in enumerate(xs[::step]):
            band = set(xs[number * step : (number + 1) * step])
            found = {
                name: next(value for key, value in points.items() if key in band)
                for name, points in curves.items()
                if band & points.keys()
            }
            place = self.places[round(x)] if self.places else f"{self.x_label} {x:g}"
            lines = [place, *(f"{name}: {value:.4g}" for name, value in found.items())]
            title = "\n".join(escape(escaped(line, one_line=True)) for line in lines)
            left, right = edges[number : number + 2]
            yield (
                f'<rect class="tip" x="{left:.1f}" y="{height - box.y1:.1f}" '
                f'width="{right - left:.1f}" height="{box.height:.1f}" fill="transparent">'
                f"<title>{title}</title></rect>"
            )


def _save(figure: Figure, file: IO[Any], kind: str, **options: Any) -> None:
    """Write a figure, with the same bytes in every run."""
    import matplotlib as mpl

    # keep text as text, for search in pages; the salt makes ids reproducible, one for each size
    salt = f"demitasse {figure.get_figwidth():g}"
    fonts = {"font.sans-serif": ["DejaVu Sans"]}  # a long list would stand beside every word
    rules: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": salt, **fonts}
    if kind == "svg":
        options["metadata"] = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    elif kind == "pdf":
        options["metadata"] = {"CreationDate": None}
    with mpl.rc_context(rules):
        figure.savefig(file, format=kind, **options)


def _add_legend(figure: Figure, lines: Sequence[Line2D], names: Sequence[str]) -> None:
    """Add a legend of several names above the axes, and make the figure higher by its rows."""
    named = {line: name for line, name in zip(lines, names, strict=True) if name}
    if len(named) < 2:
        return
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=8)
    room = POINTS * figure.get_figwidth() - 2 * KEY
    shown, widest = {}, 0.0
    for line, name in named.items():
        for size in (len(name), int(room / font.get_size())):  # no letter is wider than its height
            shown[line] = _shown_name(name, size)
            width = text_to_path.get_text_width_height_descent(shown[line], font, ismath=False)[0]
            if width < room:
                break
        widest = max(widest, width)
    columns = max(1, int(room // (widest + KEY)))
    figure.set_figheight(figure.get_figheight() - (-len(shown) // columns) * ROW / POINTS)
    figure.legend(
        list(shown), list(shown.values()), loc="outside upper left", ncols=columns, prop=font,
        frameon=False,
    )  # fmt: skip


def _shown_name(text: str, longest: int = LONGEST) -> str:
    """Return a name for a drawing, without control characters and formulas, shortened."""
    shown = escaped(text, one_line=True)
    if len(shown) > longest:
        shown = f"…{shown[1 - longest :]}"
    return shown.replace("$", r"\$")


def thinned(points: Sequence[Point]) -> list[Point]:
    """Return at most ``MOST_POINTS`` points: the lowest and the highest of each segment."""
    if len(points) <= MOST_POINTS:
        return list(points)
    size = math.ceil(2 * len(points) / MOST_POINTS)
    found = []
    for begin in range(0, len(points), size):
        segment = [point for point in points[begin : begin + size] if math.isfinite(point[1])]
        height = itemgetter(1)
        ends = {min(segment, key=height), max(segment, key=height)} if segment else set()
        found += sorted(ends) or [points[begin]]
    return found
