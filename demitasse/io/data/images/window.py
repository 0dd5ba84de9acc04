"""Cut a window out of an image, with some of what surrounds it, and resize it.

Source: Caffe, ``src/caffe/layers/window_data_layer.cpp``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from demitasse.errors import DataError
from demitasse.io.data.images.resize import resize_image

__all__ = ["Cut", "cut_window"]

FLOAT = np.float32  # what Caffe computes in, which decides where pixels lie between two places


@dataclass(frozen=True)
class Cut:
    """How windows are cut out.

    Attributes:
        size: Height and width of the result, in pixels.
        context_pad: Pixels of the result that lie around the window, on each side.
        square: Whether to cut out the square around the window, not the window itself.
    """

    size: int
    context_pad: int = 0
    square: bool = False


def cut_window(
    image: np.ndarray, box: tuple[int, int, int, int], cut: Cut, *, mirror: bool
) -> tuple[np.ndarray, int, int]:
    """Cut a window out of an image and resize it.

    Args:
        image: The image, uint8. Shape: (C, H, W).
        box: x1, y1, x2, y2, corners included, in pixels.
        cut: How to do it.
        mirror: Whether to turn it left to right.

    Returns:
        The part of the result that lies inside the image, uint8, and where it begins: (C, h, w),
        rows above it, columns left of it.

    Raises:
        DataError: No pixel of the window lies in the image.
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
        raise DataError(message)
    part = image[:, y1 : y2 + 1, x1 : x2 + 1]
    part = resize_image(part, height, width)
    return (part[:, :, ::-1] if mirror else part), above, beside


def _widened(box: tuple[int, int, int, int], cut: Cut) -> tuple[int, int, int, int]:
    """Return the window with its surroundings, which may lie outside of the image."""
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
    """Round to the nearest whole number, halves away from 0, as C's ``round`` does."""
    return int(math.copysign(math.floor(abs(float(value)) + 0.5), value))
