"""Center crops to a square.

Source: Caffe, ``tools/extra/resize_and_crop_images.py``.
"""

from __future__ import annotations

import io

import numpy as np

from demitasse.io.data.images.decode import opened
from demitasse.io.data.images.resize import resize_image

__all__ = ["middle_square", "smooth_square"]


def middle_square(image: np.ndarray, side: int) -> np.ndarray:
    """Resize an image so that its shorter side fits, and crop the longer side to the center.

    Matches the OpenCV variant of Caffe's tool.

    Args:
        image: Pixels, uint8. Shape: (C, H, W).
        side: New height and width, in pixels.

    Returns:
        The pixels, uint8. Shape: (C, side, side).
    """
    _, H, W = image.shape
    height, width = (side * H // W, side) if H > W else (side, side * W // H)
    resized = resize_image(image, height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return resized[:, top : top + side, left : left + side]


def smooth_square(content: bytes, side: int) -> bytes:
    """Return the center square of an image, averaged, as by the PIL variant of Caffe's tool.

    Nearest-neighbour subsampling by powers of 2 comes first, while the image is more than twice as
    large as wanted. Images are never enlarged, so squares may be smaller than ``side``.

    Args:
        content: Bytes of an image file.
        side: New height and width, in pixels.

    Returns:
        Bytes of a JPEG of quality 75.

    Raises:
        DataError: Pillow is not installed, the image cannot be decoded, or JPEG cannot store it
            (e.g. transparency).
    """
    with opened(content) as image:
        from PIL.Image import Resampling

        width, height = image.size
        factor = 1
        while width // factor > 2 * side and height * 2 // factor > 2 * side:
            factor *= 2
        if factor > 1:
            image.thumbnail((width // factor, height // factor), Resampling.NEAREST)
        square = image.crop(_middle(*image.size))
        square.thumbnail((side, side), Resampling.LANCZOS)
        file = io.BytesIO()
        square.save(file, "JPEG", quality=75)
    return file.getvalue()


def _middle(width: int, height: int) -> tuple[int, int, int, int]:
    """Return the center square: left, top, right, bottom, in pixels."""
    half = min(width, height) / 2
    if height > width:
        return 0, int(height // 2 - half), width, int(height // 2 + half)
    return int(width // 2 - half), 0, int(width // 2 + half), height
