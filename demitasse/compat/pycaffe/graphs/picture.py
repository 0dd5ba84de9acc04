"""A graph as shapes with places in pixels, whatever they are then drawn with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from demitasse.compat.pycaffe.graphs.layout import Point, layered

__all__ = ["FONT_SIZE", "LINE", "Line", "Picture", "Shape", "arrow", "picture"]

FONT_SIZE, LINE, MARGIN, PADDING = 14, 18.0, 10.0, 12.0
"""Height of letters and of lines of text, room around the graph and around text; pixels."""

ARROW = 9.0
"""Length of an arrowhead, pixels."""

NARROW, WIDE = frozenset(" !'()*,./:;I[]fijlrt|-"), frozenset("@MWmw%")

CORNER = 0.29
"""Share of an octagon's side that its corners take away."""


@dataclass(frozen=True)
class Shape:
    """A node.

    Attributes:
        lines: Its text.
        center: In pixels from the left and from the top.
        size: Width and height, pixels.
        corners: Of its outline; empty for an ellipse.
        fill: Colour, ``#RRGGBB``.
    """

    lines: Sequence[str]
    center: Point
    size: Point
    corners: Sequence[Point]
    fill: str


@dataclass(frozen=True)
class Line:
    """An edge.

    Attributes:
        points: Of Bezier curves, four for each; the last of one is the first of the next.
        label: Text beside it, may be empty.
        label_at: The text's left end, pixels.
    """

    points: Sequence[Point]
    label: str
    label_at: Point


@dataclass(frozen=True)
class Picture:
    """A graph ready to be drawn; ``size`` is its width and height in pixels."""

    size: Point
    shapes: Sequence[Shape]
    lines: Sequence[Line]


def picture(
    nodes: Mapping[str, Mapping[str, str]], edges: Sequence[tuple[str, str, str]], rankdir: str
) -> Picture:
    """Lay a graph out.

    Args:
        nodes: Attributes of each node; its name is its text.
        edges: First node, second node, text.
        rankdir: TB, BT, LR or RL: from the top to the bottom, and so on.
    """
    number = {name: i for i, name in enumerate(nodes)}
    texts = [name.replace(r"\l", r"\n").replace(r"\r", r"\n").split(r"\n") for name in nodes]
    sizes = [_size(text) for text in texts]
    sideways = rankdir in {"LR", "RL"}
    longest = max((_width(label) for *_, label in edges), default=0.0)
    layout = layered(
        [size[::-1] for size in sizes] if sideways else sizes,
        [(number[a], number[b]) for a, b, _ in edges],
        distance=40.0 + (longest if sideways else 0.0),
    )
    turn = _turn(rankdir, layout.size)
    shapes = [
        _shape(text, turn(center), size, style)
        for text, center, size, style in zip(
            texts, layout.centers, sizes, nodes.values(), strict=True
        )
    ]
    lines = [
        _line([turn(point) for point in route], label, sideways)
        for route, (*_, label) in zip(layout.routes, edges, strict=True)
    ]
    width, height = layout.size[::-1] if sideways else layout.size
    right = max((line.label_at[0] + _width(line.label) for line in lines), default=0.0)
    return Picture((max(width + 2 * MARGIN, right + MARGIN), height + 2 * MARGIN), shapes, lines)


def _turn(rankdir: str, size: Point) -> Callable[[Point], Point]:
    """Return what makes pixels from the left and the top of places across and down."""

    def turn(point: Point) -> Point:
        across, down = point
        if rankdir in {"BT", "RL"}:
            down = size[1] - down
        x, y = (down, across) if rankdir in {"LR", "RL"} else (across, down)
        return x + MARGIN, y + MARGIN

    return turn


def _width(text: str) -> float:
    """Return about how wide a text is in Helvetica or a font like it."""
    letters = (0.35 if c in NARROW else 0.9 if c in WIDE else 0.6 for c in text)
    return FONT_SIZE * sum(letters)


def _size(text: Sequence[str]) -> Point:
    return max(_width(line) for line in text) + 2 * PADDING, LINE * len(text) + PADDING


def _shape(text: Sequence[str], center: Point, size: Point, style: Mapping[str, str]) -> Shape:
    (x, y), (width, height) = center, size
    left, top, right, bottom = x - width / 2, y - height / 2, x + width / 2, y + height / 2
    corners: list[Point] = []
    if style.get("shape") == "octagon":
        cut = CORNER * height
        corners = [(left + cut, top), (right - cut, top), (right, top + cut), (right, bottom - cut)]
        corners += [(right - cut, bottom), (left + cut, bottom), (left, bottom - cut)]
        corners += [(left, top + cut)]
    elif style.get("shape", "ellipse") != "ellipse":
        corners = [(left, top), (right, top), (right, bottom), (left, bottom)]
    fill = style.get("fillcolor", "#FFFFFF") if style.get("style") == "filled" else "#FFFFFF"
    return Shape(text, center, size, corners, fill)


def _line(route: Sequence[Point], label: str, sideways: bool) -> Line:
    """Return a curve that leaves and enters layers at right angles."""
    points = [route[0]]
    for (x, y), (to_x, to_y) in pairwise(route):
        if sideways:
            points += [((x + to_x) / 2, y), ((x + to_x) / 2, to_y), (to_x, to_y)]
        else:
            points += [(x, (y + to_y) / 2), (to_x, (y + to_y) / 2), (to_x, to_y)]
    (x, y), (to_x, to_y) = route[:2]
    middle = (x + to_x) / 2, (y + to_y) / 2
    if sideways:
        return Line(points, label, (middle[0] - _width(label) / 2, middle[1] - LINE / 2))
    return Line(points, label, (middle[0] + 6, middle[1]))


def arrow(line: Line) -> list[Point]:
    """Return the three corners of the arrowhead at a line's end."""
    (x, y), (tip_x, tip_y) = line.points[-2:]
    length = max(((tip_x - x) ** 2 + (tip_y - y) ** 2) ** 0.5, 1e-9)
    dx, dy = (tip_x - x) / length * ARROW, (tip_y - y) / length * ARROW
    base_x, base_y = tip_x - dx, tip_y - dy
    return [
        (tip_x, tip_y),
        (base_x - dy * 0.4, base_y + dx * 0.4),
        (base_x + dy * 0.4, base_y - dx * 0.4),
    ]
