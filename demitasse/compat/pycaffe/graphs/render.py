"""Render graphs as SVG or, with Pillow, as pixels."""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.sax.saxutils import escape, quoteattr

from demitasse.compat.pycaffe.graphs.layout import Point, layered
from demitasse.core.extras import needs_extra
from demitasse.errors import ConfigError

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
    "png": "PNG", "jpg": "JPEG", "jpeg": "JPEG", "jpe": "JPEG", "gif": "GIF", "bmp": "BMP",
    "tif": "TIFF", "tiff": "TIFF", "webp": "WEBP", "pdf": "PDF", "ps": "EPS", "eps": "EPS",
}  # fmt: skip
"""Pillow's formats by file extension."""

SUPERSAMPLING = 2
"""Pixels drawn per output pixel, along each side, for antialiasing."""

MAX_PIXELS, MAX_SIDE = 1 << 26, 16_000
"""Largest image; larger drawings are scaled down, since WebP and many viewers have limits."""

CURVE_POINTS = 12


@dataclass(frozen=True)
class Curve:
    """Cubic Bezier curves; consecutive curves share a point."""

    points: Sequence[Point]


@dataclass(frozen=True)
class Polygon:
    """A polygon with a border, or an arrowhead without a fill color, ``#RRGGBB``."""

    points: Sequence[Point]
    fill: str = ""


@dataclass(frozen=True)
class Ellipse:
    """An ellipse with a border; ``size`` is width and height in pixels."""

    center: Point
    size: Point
    fill: str


@dataclass(frozen=True)
class Text:
    """A line of text, vertically centered at a point that is its left end or its center."""

    text: str
    at: Point
    centered: bool


@dataclass(frozen=True)
class Drawing:
    """A laid-out graph; ``size`` is width and height in pixels."""

    size: Point
    items: Sequence[Curve | Polygon | Ellipse | Text]


def drawing(
    nodes: Mapping[str, Mapping[str, str]], edges: Sequence[tuple[str, str, str]], rankdir: str
) -> Drawing:
    """Lay out a graph: attributes of nodes by name; edges of source, target and label."""
    number = {name: i for i, name in enumerate(nodes)}
    texts = [name.replace(r"\l", r"\n").replace(r"\r", r"\n").split(r"\n") for name in nodes]
    sizes = [
        (max(map(_width, lines)) + 2 * PADDING, LINE * len(lines) + PADDING) for lines in texts
    ]
    sideways = rankdir in {"LR", "RL"}
    longest = max((_width(label) for *_, label in edges), default=0.0)
    layout = layered(
        [size[::-1] for size in sizes] if sideways else sizes,
        [(number[a], number[b]) for a, b, _ in edges],
        distance=40.0 + (longest if sideways else 0.0),
    )

    def to_pixel(point: Point) -> Point:
        """Return the pixel (x, y) of a point of the layout (across, down)."""
        across, down = point
        if rankdir in {"BT", "RL"}:
            down = layout.size[1] - down
        x, y = (down, across) if sideways else (across, down)
        return x + MARGIN, y + MARGIN

    items: list[Curve | Polygon | Ellipse | Text] = []
    for route, (*_, label) in zip(layout.routes, edges, strict=True):
        items += _edge([to_pixel(point) for point in route], label, sideways)
    width, height = layout.size[::-1] if sideways else layout.size
    ends = [one.at[0] + _width(one.text) for one in items if isinstance(one, Text)]
    for lines, center, size, style in zip(
        texts, layout.centers, sizes, nodes.values(), strict=True
    ):
        items += _node(lines, to_pixel(center), size, style)
    right = max(ends, default=0.0)
    return Drawing((max(width + 2 * MARGIN, right + MARGIN), height + 2 * MARGIN), items)


def _width(text: str) -> float:
    """Return the approximate width of a text in Helvetica or a similar font."""
    letters = (0.35 if c in NARROW else 0.9 if c in WIDE else 0.6 for c in text)
    return FONT_SIZE * sum(letters)


def _node(
    lines: Sequence[str], center: Point, size: Point, style: Mapping[str, str]
) -> Iterator[Polygon | Ellipse | Text]:
    (x, y), (width, height) = center, size
    left, top, right, bottom = x - width / 2, y - height / 2, x + width / 2, y + height / 2
    fill = style.get("fillcolor", "#FFFFFF") if style.get("style") == "filled" else "#FFFFFF"
    if style.get("shape", "ellipse") == "ellipse":
        yield Ellipse(center, size, fill)
    elif style["shape"] == "octagon":
        cut = CORNER * height
        corners = [(left + cut, top), (right - cut, top), (right, top + cut), (right, bottom - cut)]
        corners += [(right - cut, bottom), (left + cut, bottom), (left, bottom - cut)]
        yield Polygon([*corners, (left, top + cut)], fill)
    else:
        yield Polygon([(left, top), (right, top), (right, bottom), (left, bottom)], fill)
    first = y - (len(lines) - 1) / 2 * LINE
    for i, line in enumerate(lines):
        yield Text(line, (x, first + i * LINE), centered=True)


def _edge(route: Sequence[Point], label: str, sideways: bool) -> Iterator[Curve | Polygon | Text]:
    """Yield a curve that leaves and enters layers at right angles, an arrowhead and the label."""
    points = [route[0]]
    for (x, y), (to_x, to_y) in pairwise(route):
        if sideways:
            points += [((x + to_x) / 2, y), ((x + to_x) / 2, to_y), (to_x, to_y)]
        else:
            points += [(x, (y + to_y) / 2), (to_x, (y + to_y) / 2), (to_x, to_y)]
    yield Curve(points)
    (x, y), (tip_x, tip_y) = points[-2:]
    length = max(((tip_x - x) ** 2 + (tip_y - y) ** 2) ** 0.5, 1e-9)
    dx, dy = (tip_x - x) / length * ARROW, (tip_y - y) / length * ARROW
    base_x, base_y = tip_x - dx, tip_y - dy
    sides = [(base_x - dy * 0.4, base_y + dx * 0.4), (base_x + dy * 0.4, base_y - dx * 0.4)]
    yield Polygon([(tip_x, tip_y), *sides])
    if label:
        (x, y), (to_x, to_y) = route[:2]
        x, y = (x + to_x) / 2, (y + to_y) / 2
        at = (x - _width(label) / 2, y - LINE / 2) if sideways else (x + 6, y)
        yield Text(label, at, centered=False)


def to_svg(graph: Drawing) -> str:
    """Return a drawing as an SVG document."""
    width, height = graph.size
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.1f} {height:.1f}" font-family="Helvetica, Arial, sans-serif" '
        f'font-size="{FONT_SIZE}">'
    )
    back = '<rect width="100%" height="100%" fill="#FFFFFF"/>'
    return "\n".join([head, back, *map(_svg_item, graph.items), "</svg>", ""])


def _svg_item(item: Curve | Polygon | Ellipse | Text) -> str:
    match item:
        case Curve([first, *rest]):
            curve = f"M{_points([first])} C{_points(rest)}"
            return f'<path d="{curve}" fill="none" stroke="#000000"/>'
        case Polygon(points, fill):
            look = f' fill={quoteattr(fill)} stroke="#000000"' if fill else ""
            return f'<polygon points="{_points(points)}"{look}/>'
        case Ellipse((x, y), (width, height), fill):
            place = f'cx="{x:.1f}" cy="{y:.1f}" rx="{width / 2:.1f}" ry="{height / 2:.1f}"'
            return f'<ellipse {place} fill={quoteattr(fill)} stroke="#000000"/>'
        case Text(text, (x, y), centered):
            anchor = ' text-anchor="middle"' if centered else ""
            base = y + BASELINE * FONT_SIZE
            return f'<text x="{x:.1f}" y="{base:.1f}"{anchor}>{escape(text)}</text>'
    raise TypeError(item)


def _points(points: Sequence[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def to_pixels(graph: Drawing, extension: str) -> bytes:
    """Return a drawing as the contents of an image file of one of ``FORMATS``, with Pillow."""
    with needs_extra(
        ConfigError, f"drawing {extension} files", "Pillow", "image",
        instead="write an .svg file, which needs nothing",
    ):  # fmt: skip
        import PIL.Image
        import PIL.ImageDraw
        import PIL.ImageFont
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
    border = max(1, round(scale))
    for item in graph.items:
        match item:
            case Curve(points):
                curve = [(round(x * scale), round(y * scale)) for x, y in _curve(points)]
                draw.line(curve, "#000000", border)
            case Polygon(points, fill):
                corners = _scaled(points, scale)
                draw.polygon(corners, fill or "#000000")
                if fill:  # Pillow is slow at thick outlines
                    draw.line([*corners, *corners[:2]], "#000000", border)
            case Ellipse((x, y), (w, h), fill):
                box = _scaled([(x - w / 2, y - h / 2), (x + w / 2, y + h / 2)], scale)
                draw.ellipse(box, fill, "#000000", border)
            case Text(text, (x, y), centered):
                left, top, right, bottom = draw.textbbox((0, 0), text, font)
                x = x * scale - ((left + right) / 2 if centered else left)
                draw.text((x, y * scale - (top + bottom) / 2), text, "#000000", font)
    size = max(1, fine[0] // SUPERSAMPLING), max(1, fine[1] // SUPERSAMPLING)
    file = io.BytesIO()
    image.resize(size, PIL.Image.Resampling.BOX).save(file, FORMATS[extension])
    return file.getvalue()


def _scaled(points: Sequence[Point], scale: float) -> list[Point]:
    return [(x * scale, y * scale) for x, y in points]


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
