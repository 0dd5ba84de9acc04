"""Resize images as OpenCV's ``cv::resize`` does by default: bilinear, in 11-bit fixed point.

Shrinking does not average what lies between the sampled pixels, unlike in Pillow; nets were trained
on images made like this.

Source: OpenCV, ``modules/imgproc/src/resize.cpp`` (``INTER_LINEAR`` on 8-bit pixels).
"""

from __future__ import annotations

import numpy as np

__all__ = ["resize_image"]

BITS = 11
ONE = 1 << BITS


def resize_image(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return an image in another size.

    Args:
        image: Its pixels, uint8. Shape: (C, H, W).
        height: Wanted height, above 0, in pixels.
        width: Wanted width, above 0, in pixels.

    Returns:
        The pixels, uint8. Shape: (C, height, width).
    """
    _, H, W = image.shape
    if image.shape[1:] == (height, width):
        return image
    above, below, share = _samples(H, height, clamp=False)
    needed, place = np.unique(np.concatenate([above, below]), return_inverse=True)
    rows = _squeeze(image[:, needed], W, width)
    total = (rows[:, place[:height]] * (ONE - share)[:, None]) >> 16
    total += (rows[:, place[height:]] * share[:, None]) >> 16
    total += 2
    total >>= 2
    return np.asarray(np.clip(total, 0, 255), np.uint8)


def _squeeze(rows: np.ndarray, size: int, wanted: int) -> np.ndarray:
    """Resize sideways. Shapes: (C, rows, size) -> (C, rows, wanted), in units of 1 / 128."""
    left, right, share = _samples(size, wanted)
    total: np.ndarray = rows[:, :, left] * (ONE - share)
    total += rows[:, :, right] * share
    total >>= 4
    return total


def _samples(
    size: int, wanted: int, *, clamp: bool = True
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return for each new pixel its two old neighbours and the share of the second one.

    Args:
        size: Old number of pixels.
        wanted: New number of pixels.
        clamp: Whether a pixel beyond an end is that end alone.

    Returns:
        Two arrays of indices and one of shares, in units of 1 / 2048. Shapes: (wanted,), int32.
    """
    scale = 1.0 / (wanted / size)
    place = ((np.arange(wanted) + 0.5) * scale - 0.5).astype(np.float32)
    first = np.floor(place).astype(np.int32)
    fraction = place - first.astype(np.float32)
    if clamp:
        outside = (first < 0) | (first >= size - 1)
        fraction[outside] = 0
    share = np.rint(fraction * np.float32(ONE)).astype(np.int32)
    return np.clip(first, 0, size - 1), np.clip(first + 1, 0, size - 1), share
