"""Resize images as OpenCV's ``cv::resize`` does by default: bilinear, in 11-bit fixed point.

Shrinking does not average what lies between the sampled pixels, unlike in Pillow; nets were trained
on images made like this.

Source: OpenCV, ``modules/imgproc/src/resize.cpp`` (``INTER_LINEAR`` on 8-bit pixels).
"""

from __future__ import annotations

import numpy as np

__all__ = ["resize_image", "resize_values"]

BITS = 11
ONE = 1 << BITS


def resize_image(
    image: np.ndarray, height: int, width: int, step: float | None = None
) -> np.ndarray:
    """Return an image in another size.

    Args:
        image: Its pixels, uint8. Shape: (C, H, W).
        height: Wanted height, above 0, in pixels.
        width: Wanted width, above 0, in pixels.
        step: How many old pixels a new one stands for, in both directions; None works it out from
            the sizes.

    Returns:
        The pixels, uint8. Shape: (C, height, width).
    """
    _, H, W = image.shape
    if image.shape[1:] == (height, width):
        return image
    above, below, share = _shares(H, height, step, clamp=False)
    needed, place = np.unique(np.concatenate([above, below]), return_inverse=True)
    # The layout of decoded images, and of what numpy's indexing makes of them, is slow here.
    planes = np.ascontiguousarray(image if len(needed) == H else image[:, needed])
    rows = _squeeze(planes, W, width, step)
    total = (rows.take(place[:height], axis=1) * (ONE - share)[:, None]) >> 16
    total += (rows.take(place[height:], axis=1) * share[:, None]) >> 16
    total += 2
    total >>= 2
    return np.asarray(np.clip(total, 0, 255), np.uint8)


def resize_values(
    image: np.ndarray, height: int, width: int, step: float | None = None
) -> np.ndarray:
    """Return an image of float32 in another size; see ``resize_image``.

    Shapes: (C, H, W) -> (C, height, width).
    """
    _, H, W = image.shape
    left, right, across = _samples(W, width, step)
    rows = image[:, :, left] * (1 - across) + image[:, :, right] * across
    above, below, down = _samples(H, height, step, clamp=False)
    return np.asarray(rows[:, above] * (1 - down)[:, None] + rows[:, below] * down[:, None])


def _squeeze(rows: np.ndarray, size: int, wanted: int, step: float | None) -> np.ndarray:
    """Resize sideways. Shapes: (C, rows, size) -> (C, rows, wanted), in units of 1 / 128."""
    left, right, share = _shares(size, wanted, step)
    total: np.ndarray = rows.take(left, axis=2) * (ONE - share)
    total += rows.take(right, axis=2) * share
    total >>= 4
    return total


def _shares(
    size: int, wanted: int, step: float | None, *, clamp: bool = True
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As ``_samples``, with the shares in units of 1 / 2048, int32."""
    first, second, fraction = _samples(size, wanted, step, clamp=clamp)
    return first, second, np.rint(fraction * np.float32(ONE)).astype(np.int32)


def _samples(
    size: int, wanted: int, step: float | None, *, clamp: bool = True
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return for each new pixel its two old neighbours and the share of the second one.

    Args:
        size: Old number of pixels.
        wanted: New number of pixels.
        step: How many old pixels a new one stands for; None works it out.
        clamp: Whether a pixel beyond an end is that end alone.

    Returns:
        Two arrays of indices, int32, and one of shares, float32. Shapes: (wanted,).
    """
    scale = 1.0 / (wanted / size) if step is None else step
    place = ((np.arange(wanted) + 0.5) * scale - 0.5).astype(np.float32)
    first = np.floor(place).astype(np.int32)
    fraction = place - first.astype(np.float32)
    if clamp:
        outside = (first < 0) | (first >= size - 1)
        fraction[outside] = 0
    return np.clip(first, 0, size - 1), np.clip(first + 1, 0, size - 1), fraction
