"""Render graphs as SVG or, with Pillow, as pixels."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

from demitasse.compat.pycaffe.graphs.layout import Point, layered
from demitasse.core.extras import missing_extra
from demitasse.errors import ConfigError

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont, ImageFont


FONT_SIZE, LINE, MARGIN, PADDING = 14, 18.0, 10.0, 12.0
"""Font size, line height, margin of the graph and padding of text; pixels."""

ARROW = 9.0
"""Length of an arrowhead, pixels."""

NARROW, WIDE = frozenset(" !'()*,./:;I[]fijlrt|-"), frozenset("@MWmw%")

CORNER = 0.29
"""Fraction of an octagon's height that each corner cuts off."""


BASELINE = 0.35
"""Distance from the middle of a text line down to its baseline, in font sizes."""

FORMATS = {
    "png": "PNG",
    "jpg": "JPEG",
    "jpeg": "JPEG",
    "jpe": "JPEG",
    "gif": "GIF",
    "bmp": "BMP",
    "tif": "TIFF",
    "tiff": "TIFF",
    "webp": "WEBP",
    "pdf": "PDF",
    "ps": "EPS",
    "eps": "EPS",
}
"""Pillow's formats by file extension."""

SUPERSAMPLING = 2
"""Pixels drawn per output pixel, along each side, for antialiasing."""

MAX_PIXELS, MAX_SIDE = 1 << 26, 16_000
"""Largest image; larger drawings are scaled down, since WebP and many viewers have limits."""

CURVE_POINTS = 12


@dataclass(frozen=True)
class Shape:
    """A node.

    Attributes:
        lines: Lines of text.
        center: Center, in pixels from the left and from the top.
        size: Width and height, pixels.
        corners: Corners of the outline; empty for an ellipse.
        fill: Color, ``#RRGGBB``.
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
        points: Points of cubic Bezier curves; consecutive curves share a point.
        label: Label, perhaps empty.
        label_at: Left end of the label, pixels.
    """

    points: Sequence[Point]
    label: str
    label_at: Point


@dataclass(frozen=True)
class Drawing:
    """A laid-out graph; ``size`` is width and height in pixels."""

    size: Point
    shapes: Sequence[Shape]
    lines: Sequence[Line]


def drawing(
    nodes: Mapping[str, Mapping[str, str]], edges: Sequence[tuple[str, str, str]], rankdir: str
) -> Drawing:
    """Lay out a graph.

    Args:
        nodes: Attributes of each node by its name, which is also its text.
        edges: Source node, target node, label.
        rankdir: TB, BT, LR or RL: from top to bottom, ...
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
    to_pixel = _pixel_map(rankdir, layout.size)
    shapes = [
        _shape(text, to_pixel(center), size, style)
        for text, center, size, style in zip(
            texts, layout.centers, sizes, nodes.values(), strict=True
        )
    ]
    lines = [
        _line([to_pixel(point) for point in route], label, sideways)
        for route, (*_, label) in zip(layout.routes, edges, strict=True)
    ]
    width, height = layout.size[::-1] if sideways else layout.size
    right = max((line.label_at[0] + _width(line.label) for line in lines), default=0.0)
    return Drawing((max(width + 2 * MARGIN, right + MARGIN), height + 2 * MARGIN), shapes, lines)


def _pixel_map(rankdir: str, size: Point) -> Callable[[Point], Point]:
    """Return the map from layout coordinates (across, down) to pixels (x, y)."""

    def to_pixel(point: Point) -> Point:
        across, down = point
        if rankdir in {"BT", "RL"}:
            down = size[1] - down
        x, y = (down, across) if rankdir in {"LR", "RL"} else (across, down)
        return x + MARGIN, y + MARGIN

    return to_pixel


def _width(text: str) -> float:
    """Return the approximate width of a text in Helvetica or a similar font."""
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
    """Return the three corners of a line's arrowhead."""
    (x, y), (tip_x, tip_y) = line.points[-2:]
    length = max(((tip_x - x) ** 2 + (tip_y - y) ** 2) ** 0.5, 1e-9)
    dx, dy = (tip_x - x) / length * ARROW, (tip_y - y) / length * ARROW
    base_x, base_y = tip_x - dx, tip_y - dy
    return [
        (tip_x, tip_y),
        (base_x - dy * 0.4, base_y + dx * 0.4),
        (base_x + dy * 0.4, base_y - dx * 0.4),
    ]


def to_svg(graph: Drawing) -> str:
    """Return a drawing as an SVG document."""
    width, height = graph.size
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.1f} {height:.1f}" font-family="Helvetica, Arial, sans-serif" '
        f'font-size="{FONT_SIZE}">'
    )
    back = '<rect width="100%" height="100%" fill="#FFFFFF"/>'
    lines = [part for line in graph.lines for part in _svg_line(line)]
    shapes = [part for shape in graph.shapes for part in _svg_shape(shape)]
    return "\n".join([head, back, *lines, *shapes, "</svg>", ""])


def _points(points: Sequence[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _svg_line(line: Line) -> list[str]:
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


def _svg_shape(shape: Shape) -> list[str]:
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


def to_pixels(graph: Drawing, extension: str) -> bytes:
    """Return a drawing as the contents of an image file, with Pillow.

    Args:
        graph: The drawing.
        extension: One of ``FORMATS``.

    Raises:
        ConfigError: Pillow is not installed.
    """
    try:
        import PIL.Image
        import PIL.ImageDraw
        import PIL.ImageFont
    except ImportError:
        raise missing_extra(
            ConfigError, f"drawing {extension} files", "Pillow", "image",
            instead="write an .svg file, which needs nothing",
        ) from None  # fmt: skip
    width, height = graph.size
    scale = min(
        SUPERSAMPLING,
        (MAX_PIXELS / (width * height)) ** 0.5,
        SUPERSAMPLING * MAX_SIDE / max(width, height),
    )
    fine = max(1, int(width * scale)), max(1, int(height * scale))
    image = PIL.Image.new("RGB", fine, "#FFFFFF")
    draw = PIL.ImageDraw.Draw(image)
    font = PIL.ImageFont.load_default(FONT_SIZE * scale)
    for line in graph.lines:
        _draw_line(draw, font, line, scale)
    for shape in graph.shapes:
        _draw_shape(draw, font, shape, scale)
    size = max(1, fine[0] // SUPERSAMPLING), max(1, fine[1] // SUPERSAMPLING)
    file = io.BytesIO()
    image.resize(size, PIL.Image.Resampling.BOX).save(file, FORMATS[extension])
    return file.getvalue()


def _scaled(points: Sequence[Point], scale: float) -> list[Point]:
    return [(x * scale, y * scale) for x, y in points]


def _draw_line(draw: ImageDraw, font: ImageFont | FreeTypeFont, line: Line, scale: float) -> None:
    width = max(1, round(scale))
    curve = [(round(x), round(y)) for x, y in _scaled(list(_curve(line.points)), scale)]
    draw.line(curve, "#000000", width)
    draw.polygon(_scaled(arrow(line), scale), "#000000")
    if line.label:
        x, y = line.label_at
        _write(draw, font, (x, y), line.label, scale, centered=False)


def _draw_shape(
    draw: ImageDraw, font: ImageFont | FreeTypeFont, shape: Shape, scale: float
) -> None:
    (x, y), (width, height) = shape.center, shape.size
    border = max(1, round(scale))
    if shape.corners:
        corners = _scaled(shape.corners, scale)
        draw.polygon(corners, shape.fill)
        draw.line([*corners, *corners[:2]], "#000000", border)  # Pillow is slow at thick outlines
    else:
        box = _scaled([(x - width / 2, y - height / 2), (x + width / 2, y + height / 2)], scale)
        draw.ellipse(box, shape.fill, "#000000", border)
    first = y - (len(shape.lines) - 1) / 2 * LINE
    for i, text in enumerate(shape.lines):
        _write(draw, font, (x, first + i * LINE), text, scale, centered=True)


def _write(
    draw: ImageDraw,
    font: ImageFont | FreeTypeFont,
    at: Point,
    text: str,
    scale: float,
    *,
    centered: bool,
) -> None:
    """Draw a line of text, vertically centered; left-aligned or horizontally centered."""
    left, top, right, bottom = draw.textbbox((0, 0), text, font)
    x = at[0] * scale - ((left + right) / 2 if centered else left)
    draw.text((x, at[1] * scale - (top + bottom) / 2), text, "#000000", font)


def _curve(points: Sequence[Point]) -> Iterator[Point]:
    """Return points on Bezier curves."""
    yield points[0]
    for start in range(0, len(points) - 1, 3):
        (ax, ay), (bx, by), (cx, cy), (dx, dy) = points[start : start + 4]
        for i in range(1, CURVE_POINTS + 1):
            t = i / CURVE_POINTS
            u = 1 - t
            a, b, c, d = u**3, 3 * u * u * t, 3 * u * t * t, t**3
            yield a * ax + b * bx + c * cx + d * dx, a * ay + b * by + c * cy + d * dy
