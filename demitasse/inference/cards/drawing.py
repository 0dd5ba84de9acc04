"""Answers drawn on their images, with Pillow: boxes, masks, and the best class."""

from __future__ import annotations

import colorsys
from typing import TYPE_CHECKING

import numpy as np

from demitasse.errors import DataError
from demitasse.inference.cards.answers import Answer, Boxes, Classes, Segments

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

__all__ = ["drawn"]

TURN = 0.618034
"""By how much of the circle of hues classes differ: those of neighbours are far apart."""

OPACITY = 0.5
"""Of a mask over its image."""

Color = tuple[int, int, int]


def drawn(image: np.ndarray, answer: Answer) -> np.ndarray:
    """Return an image with an answer drawn on it.

    Args:
        image: Its pixels, uint8, blue first, or brightness alone. Shape: (C, H, W).
        answer: What is drawn: boxes with labels, a mask, or the best class in a corner. The values
            of blobs leave the image as it is.

    Returns:
        The pixels, blue first. Shape: (3, H, W), uint8.

    Raises:
        DataError: Pillow is not installed.
    """
    try:
        import PIL.Image
        import PIL.ImageDraw
    except ImportError:
        message = "drawing needs Pillow; run: pip install 'demitasse[image]'"
        raise DataError(message) from None
    colored = np.repeat(image, 3, axis=0) if len(image) == 1 else image
    pixels = colored[::-1].transpose(1, 2, 0)  # (H, W, 3), red first
    if isinstance(answer, Segments):
        pixels = _blended(pixels, answer.mask)
    picture = PIL.Image.fromarray(np.ascontiguousarray(pixels))
    draw = PIL.ImageDraw.Draw(picture)
    if isinstance(answer, Boxes):
        for box in reversed(answer.boxes):  # the best on top
            color, width = _color(box.index), max(1, min(picture.size) // 200)
            corners = (box.xmin, box.ymin, max(box.xmax, box.xmin), max(box.ymax, box.ymin))
            draw.rectangle(corners, outline=color, width=width)
            _write(draw, f"{box.label} {box.score:.2f}", (box.xmin, box.ymin), color)
    elif isinstance(answer, Classes):
        for label, score in answer.top(1):
            _write(draw, f"{label} {score:.2f}", (0, 0), _color(0))
    return np.asarray(picture).transpose(2, 0, 1)[::-1]


def _blended(pixels: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Lay the colours of classes over an image; class 0, the background, is left alone."""
    colors = np.array([_color(index) for index in range(int(mask.max(initial=0)) + 1)])
    mixed = pixels * (1 - OPACITY) + colors[mask] * OPACITY
    return np.where((mask > 0)[:, :, None], mixed, pixels).astype(np.uint8)


def _color(index: int) -> Color:
    """Return the colour of a class."""
    red, green, blue = colorsys.hsv_to_rgb(index * TURN % 1, 0.8, 1.0)
    return int(red * 255), int(green * 255), int(blue * 255)


def _write(draw: ImageDraw, text: str, corner: tuple[float, float], color: Color) -> None:
    """Write a line on a ground of a colour, above a corner where there is room."""
    from PIL import ImageFont

    size = max(10, min(draw.im.size) // 40)
    font = ImageFont.load_default(size)
    text = text.encode("latin-1", "replace").decode("latin-1")  # what the font has
    left, top = corner[0], max(0.0, corner[1] - size * 1.3)
    draw.rectangle(draw.textbbox((left, top), text, font=font), fill=color)
    draw.text((left, top), text, fill=(0, 0, 0), font=font)
