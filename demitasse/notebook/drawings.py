"""Small charts as SVG, made without a library, in the notebook's own colour of text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from demitasse.notebook.markup import text

__all__ = ["curves", "histogram"]

COLORS = ("#3b82c4", "#d9661f", "#1f9e78", "#b8609a", "#b58900", "#5b6bc0")
"""Legible on light and on dark ground."""

WIDTH, HEIGHT = 420, 160
LEFT, TOP, BOTTOM = 58, 22, 18
"""Room for what stands along the axes."""

MOST_POINTS = 400
"""Points of a curve that are drawn; of more, some at equal distances, and the last."""

Point = tuple[float, float]


def histogram(counts: Sequence[int], low: float, high: float, about: str) -> str:
    """Return a histogram whose first bar begins at ``low`` and whose last ends at ``high``."""
    width, height, most = 260, 90, max(counts)
    step = width / len(counts)
    bars = "".join(
        f'<rect x="{i * step:.2f}" y="{height - size:.2f}" width="{max(step - 1, 0.5):.2f}" '
        f'height="{size:.2f}"/>'
        for i, size in enumerate(height * count / most for count in counts)
    )
    return (
        f'<svg role="img" aria-label="{text(about)}" width="{width}" height="{height + 18}" '
        f'viewBox="0 0 {width} {height + 18}" font-size="11" fill="currentColor">'
        f'<g fill="{COLORS[0]}">{bars}</g>'
        f'<path d="M0 {height}H{width}" stroke="currentColor"/>'
        f'<text x="0" y="{height + 14}">{low:.4g}</text>'
        f'<text x="{width}" y="{height + 14}" text-anchor="end">{high:.4g}</text></svg>'
    )


def curves(series: Mapping[str, Sequence[Point]], label: str) -> str:
    """Return curves over iterations, with a legend; nothing where none has a finite value.

    Values that are all above 0 and far apart are drawn on a log scale.
    """
    drawn = {
        name: [(x, y) for x, y in _thinned(points) if math.isfinite(y)]
        for name, points in series.items()
    }
    drawn = {name: points for name, points in drawn.items() if points}
    if not drawn:
        return ""
    xs = [x for points in drawn.values() for x, _ in points]
    ys = [y for points in drawn.values() for _, y in points]
    log = min(ys) > 0 and max(ys) > 30 * min(ys)
    scale = math.log10 if log else float
    left, right = min(xs), max(*xs, min(xs) + 1)
    low, high = scale(min(ys)), scale(max(ys))
    high = high if high > low else low + (abs(low) or 1.0)

    def at(x: float, y: float) -> str:
        across = LEFT + (WIDTH - LEFT - 6) * (x - left) / (right - left)
        down = TOP + (HEIGHT - BOTTOM - TOP) * (high - scale(y)) / (high - low)
        return f"{across:.1f},{down:.1f}"

    parts = []
    for number, (name, points) in enumerate(drawn.items()):
        color = COLORS[number % len(COLORS)]
        line = " ".join(at(x, y) for x, y in points)
        parts.append(
            f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="1.6"/>'
            if len(points) > 1
            else '<circle cx="{}" cy="{}" r="2.5" fill="{}"/>'.format(*line.split(","), color)
        )
        parts.append(
            f'<text x="{LEFT + 4}" y="{HEIGHT + 16 + 14 * number}" fill="{color}">'
            f"{text(name)}: {points[-1][1]:.4g}</text>"
        )
    ends = (10**low, 10**high) if log else (low, high)
    height = HEIGHT + 10 + 14 * len(drawn)
    return (
        f'<svg role="img" aria-label="{text(label)}" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-size="11" fill="currentColor">'
        f'<path d="M{LEFT} {TOP - 2}V{HEIGHT - BOTTOM}H{WIDTH}" fill="none" stroke="currentColor"/>'
        f'<text x="{LEFT - 5}" y="{TOP + 6}" text-anchor="end">{ends[1]:.4g}</text>'
        f'<text x="{LEFT - 5}" y="{HEIGHT - BOTTOM}" text-anchor="end">{ends[0]:.4g}</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 4}">{left:g}</text>'
        f'<text x="{WIDTH}" y="{HEIGHT - 4}" text-anchor="end">iteration {max(xs):g}</text>'
        f'<text x="{WIDTH / 2}" y="12" text-anchor="middle">{text(label)}'
        f"{', log scale' if log else ''}</text>"
        f"{''.join(parts)}</svg>"
    )


def _thinned(points: Sequence[Point]) -> list[Point]:
    step = max(1, math.ceil(len(points) / MOST_POINTS))
    return [*points[::step], *(points[-1:] if step > 1 else ())]
