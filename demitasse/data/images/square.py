"""The middle of an image, as a square of a wanted size.

Source: Caffe, ``tools/extra/resize_and_crop_images.py`` (with OpenCV).
"""

from __future__ import annotations

import numpy as np

from demitasse.data.images.resize import resize_image

__all__ = ["middle_square"]


def middle_square(image: np.ndarray, side: int) -> np.ndarray:
    """Resize an image so that its shorter side fits, and cut off both ends of the longer one.

    Args:
        image: Its pixels, uint8. Shape: (C, H, W).
        side: Wanted height and width, in pixels.

    Returns:
        The pixels, uint8. Shape: (C, side, side).
    """
    _, H, W = image.shape
    height, width = (side * H // W, side) if H > W else (side, side * W // H)
    resized = resize_image(image, height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return resized[:, top : top + side, left : left + side]
