"""Center crops to a square, and crops of windows with context.

Source: Caffe, ``tools/extra/resize_and_crop_images.py`` and
``src/caffe/layers/window_data_layer.cpp``.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass

import numpy as np

from demitasse.errors import DataError, ErrorCode
from demitasse.io.data.images.codecs import opened
from demitasse.io.data.images.resize import resize_image


def center_crop(image: np.ndarray, side: int) -> np.ndarray:
    """Resize an image so that its shorter side fits, and crop the longer side to the center.

    Matches the OpenCV variant of Caffe's tool. Shapes: (C, H, W) -> (C, side, side), uint8.
    """
    _, H, W = image.shape
    height, width = (side * H // W, side) if H > W else (side, side * W // H)
    resized = resize_image(image, height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return resized[:, top : top + side, left : left + side]


def averaged_center_crop(content: bytes, side: int) -> bytes:
    """Return the center square of an image as a JPEG, averaged.

    This is the PIL variant of Caffe's tool. Nearest-neighbour subsampling by powers of 2 comes
    first, while the image is more than twice as large as wanted. Images are never enlarged, so
    squares may be smaller than ``side`` pixels.
    """
    with opened(content) as image:
        from PIL.Image import Resampling

        width, height = image.size
        factor = 1
        while width // factor > 2 * side and height * 2 // factor > 2 * side:
            factor *= 2
        if factor > 1:
            image.thumbnail((width // factor, height // factor), Resampling.NEAREST)
        (width, height), half = image.size, min(image.size) / 2
        if height > width:
            middle = (0, int(height // 2 - half), width, int(height // 2 + half))
        else:
            middle = (int(width // 2 - half), 0, int(width // 2 + half), height)
        square = image.crop(middle)
        square.thumbnail((side, side), Resampling.LANCZOS)
        file = io.BytesIO()
        square.save(file, "JPEG", quality=75)
    return file.getvalue()


FLOAT = np.float32  # Caffe's precision, which decides the rounding of pixel positions


@dataclass(frozen=True)
class WindowCrop:
    """Options of window crops.

    Attributes:
        size: Height and width of the result, in pixels.
        context_pad: Context around the window on each side, in pixels of the result.
        square: Crop the square around the window instead of the window.
    """

    size: int
    context_pad: int = 0
    square: bool = False


def crop_window(
    image: np.ndarray, box: tuple[int, int, int, int], cut: WindowCrop, *, mirror: bool
) -> tuple[np.ndarray, int, int]:
    """Crop a window of an image, x1, y1, x2, y2 (inclusive, in pixels), and resize it.

    Returns:
        The part of the result inside the image, (C, h, w), uint8; the rows above it, and the
            columns left of it, in the result.
    """
    x1, y1, x2, y2 = box
    H, W = image.shape[1:]
    height = width = cut.size
    above = beside = 0
    if cut.context_pad or cut.square:
        x1, y1, x2, y2 = _widened(box, cut)
        full = (x2 - x1 + 1, y2 - y1 + 1)
        left, right = max(0, -x1), max(0, x2 - W + 1)
        over, under = max(0, -y1), max(0, y2 - H + 1)
        x1, x2, y1, y2 = x1 + left, x2 - right, y1 + over, y2 - under
        scale_x, scale_y = FLOAT(cut.size) / FLOAT(full[0]), FLOAT(cut.size) / FLOAT(full[1])
        width = _round(FLOAT(x2 - x1 + 1) * scale_x)
        height = _round(FLOAT(y2 - y1 + 1) * scale_y)
        above = _round(FLOAT(over) * scale_y)
        beside = _round(FLOAT(right if mirror else left) * scale_x)
        height, width = min(height, cut.size - above), min(width, cut.size - beside)
    inside = 0 <= x1 <= x2 < W and 0 <= y1 <= y2 < H
    if not inside or min(height, width) < 1:
        message = f"window {box} does not lie in its image of {W} x {H} pixels"
        raise DataError(message, code=ErrorCode.OUT_OF_RANGE, field="box", got=box, expected=(W, H))
    part = image[:, y1 : y2 + 1, x1 : x2 + 1]
    part = resize_image(part, height, width)
    return (part[:, :, ::-1] if mirror else part), above, beside


def _widened(box: tuple[int, int, int, int], cut: WindowCrop) -> tuple[int, int, int, int]:
    """Return the window with its context, which may leave the image."""
    x1, y1, x2, y2 = box
    scale = FLOAT(cut.size) / FLOAT(cut.size - 2 * cut.context_pad)
    half_h, half_w = FLOAT(y2 - y1 + 1) / FLOAT(2), FLOAT(x2 - x1 + 1) / FLOAT(2)
    x, y = FLOAT(x1) + half_w, FLOAT(y1) + half_h
    if cut.square:
        half_h = half_w = max(half_h, half_w)
    return (
        _round(x - half_w * scale),
        _round(y - half_h * scale),
        _round(x + half_w * scale),
        _round(y + half_h * scale),
    )


def _round(value: np.float32) -> int:
    """Round to the nearest integer, halves away from 0, like C's ``round``."""
    return int(math.copysign(math.floor(abs(float(value)) + 0.5), value))
