"""Charts of curves over numbers, several runs in each, as SVG for pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from demitasse.pages.chart import COLORS, INK, STYLES, drawing, shown_name, svg_of

__all__ = ["Curve", "curve_chart"]

MOST_POINTS = 1000
"""Points of a curve that are drawn; of more, the lowest and highest of each stretch."""

LARGEST = 1e300
"""What is drawn is smaller, and on a log scale above its inverse: ends of axes lie beyond it."""

LONGEST_LABEL = 50
"""Letters that fit along the y axis; the end tells more than the beginning."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Curve:
    """One curve of a chart.

    Attributes:
        name: What the legend says.
        points: Places along the x axis, rising, and values.
        color: Number of its colour; curves that belong together share one.
        style: Number of its style, solid being 0.
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
    """Return a chart as SVG text for a page, whose colour of text it takes.

    Values that are NaN, infinite or next to it, and on a log scale those that are not above 0,
    leave gaps.

    Raises:
        DemitasseError: Matplotlib is not installed.
    """
    with drawing() as figure:
        axes = figure.add_subplot()
        for curve in curves:
            points = [(x, _drawn(y, scale)) for x, y in thinned(curve.points)]
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
    """Return so few points that a page stays small: of each stretch the lowest and the highest."""
    if len(points) <= MOST_POINTS:
        return list(points)
    size = math.ceil(2 * len(points) / MOST_POINTS)
    found = []
    for begin in range(0, len(points), size):
        stretch = [point for point in points[begin : begin + size] if math.isfinite(point[1])]
        ends = {min(stretch, key=_value), max(stretch, key=_value)} if stretch else set()
        found += sorted(ends) or [points[begin]]
    return found


def _value(point: Point) -> float:
    return point[1]


def _drawn(value: float, scale: str) -> float:
    drawn = abs(value) < LARGEST and (scale == "linear" or value > 1 / LARGEST)
    return value if drawn else math.nan
