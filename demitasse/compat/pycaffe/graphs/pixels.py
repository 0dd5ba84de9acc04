"""Pictures of graphs as pixels, in any format that Pillow writes."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from demitasse.compat.pycaffe.graphs.layout import Point
from demitasse.compat.pycaffe.graphs.picture import FONT_SIZE, LINE, Line, Picture, Shape, arrow
from demitasse.errors import ConfigError

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont, ImageFont

__all__ = ["FORMATS", "pixels"]

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
"""Extensions of files, and Pillow's names of what is in them."""

FINENESS = 2
"""Pixels that are drawn for each one that is kept, along each side; it smoothes lines."""

MOST_PIXELS, LONGEST_SIDE = 1 << 26, 16_000
"""What may be drawn; larger pictures are made smaller, as WebP and many viewers end there."""

CURVE_POINTS = 12


def pixels(picture: Picture, extension: str) -> bytes:
    """Return a picture as the contents of a file.

    Args:
        picture: The picture.
        extension: One of ``FORMATS``.

    Raises:
        ConfigError: Pillow is not installed.
    """
    try:
        import PIL.Image
        import PIL.ImageDraw
        import PIL.ImageFont
    except ImportError:
        message = (
            f"drawing {extension} files needs Pillow; run: pip install 'demitasse[image]', "
            "or write an .svg file, which needs nothing"
        )
        raise ConfigError(message) from None
    width, height = picture.size
    scale = min(
        FINENESS,
        (MOST_PIXELS / (width * height)) ** 0.5,
        FINENESS * LONGEST_SIDE / max(width, height),
    )
    fine = max(1, int(width * scale)), max(1, int(height * scale))
    image = PIL.Image.new("RGB", fine, "#FFFFFF")
    draw = PIL.ImageDraw.Draw(image)
    font = PIL.ImageFont.load_default(FONT_SIZE * scale)
    for line in picture.lines:
        _draw_line(draw, font, line, scale)
    for shape in picture.shapes:
        _draw_shape(draw, font, shape, scale)
    kept = max(1, fine[0] // FINENESS), max(1, fine[1] // FINENESS)
    file = io.BytesIO()
    image.resize(kept, PIL.Image.Resampling.BOX).save(file, FORMATS[extension])
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
    """Write a line of text around a height, from a place or around it."""
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
