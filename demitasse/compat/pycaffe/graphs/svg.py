"""Pictures of graphs as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

from demitasse.compat.pycaffe.graphs.layout import Point
from demitasse.compat.pycaffe.graphs.picture import FONT_SIZE, LINE, Line, Picture, Shape, arrow

__all__ = ["svg"]

BASELINE = 0.35
"""How far below its middle a line of text stands, in heights of letters."""


def svg(picture: Picture) -> str:
    """Return a picture as an SVG document."""
    width, height = picture.size
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.1f} {height:.1f}" font-family="Helvetica, Arial, sans-serif" '
        f'font-size="{FONT_SIZE}">'
    )
    back = '<rect width="100%" height="100%" fill="#FFFFFF"/>'
    lines = [part for line in picture.lines for part in _line(line)]
    shapes = [part for shape in picture.shapes for part in _shape(shape)]
    return "\n".join([head, back, *lines, *shapes, "</svg>", ""])


def _points(points: Sequence[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _line(line: Line) -> list[str]:
    first, *rest = line.points
    curve = f"M{_points([first])} C{_points(rest)}"
    parts = [
        f'<path d="{curve}" fill="none" stroke="#000000"/>',
        f'<polygon points="{_points(arrow(line))}"/>',
    ]
    if line.label:
        x, y = line.label_at
        parts.append(
            f'<text x="{x:.1f}" y="{y + BASELINE * FONT_SIZE:.1f}">{escape(line.label)}</text>'
        )
    return parts


def _shape(shape: Shape) -> list[str]:
    (x, y), (width, height) = shape.center, shape.size
    look = f'fill={quoteattr(shape.fill)} stroke="#000000"'
    if shape.corners:
        outline = f'<polygon points="{_points(shape.corners)}" {look}/>'
    else:
        size = f'rx="{width / 2:.1f}" ry="{height / 2:.1f}"'
        outline = f'<ellipse cx="{x:.1f}" cy="{y:.1f}" {size} {look}/>'
    first = y - (len(shape.lines) - 1) / 2 * LINE + BASELINE * FONT_SIZE
    texts = [
        f'<text x="{x:.1f}" y="{first + i * LINE:.1f}" text-anchor="middle">{escape(text)}</text>'
        for i, text in enumerate(shape.lines)
    ]
    return [outline, *texts]
