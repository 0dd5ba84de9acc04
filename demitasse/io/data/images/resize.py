"""Bilinear resizing as by OpenCV's ``cv::resize``, in 11-bit fixed point.

Unlike Pillow, shrinking does not average the pixels between samples; published nets were trained
on such images.

Source: OpenCV, ``modules/imgproc/src/resize.cpp`` (``INTER_LINEAR`` on 8-bit pixels).
"""

from __future__ import annotations

from functools import cache

import numpy as np

from demitasse.backends.kernels.language import status
from demitasse.errors import ErrorCode, ShapeError
from demitasse.io.data.images.samples import ONE, samples, shares

__all__ = ["portable", "resize_image", "resize_values"]


def resize_image(
    image: np.ndarray, height: int, width: int, step: float | None = None
) -> np.ndarray:
    """Resize an image bilinearly.

    Args:
        image: Pixels, uint8. Shape: (C, H, W).
        height: New height, above 0, in pixels.
        width: New width, above 0, in pixels.
        step: Old pixels per new pixel, in both directions; None: from the sizes.

    Returns:
        The pixels, uint8. Shape: (C, height, width).

    Raises:
        ShapeError: The image does not have three axes, or a size is 0.
    """
    if image.ndim != 3 or min(*image.shape[1:], height, width) < 1:
        message = f"cannot resize an image (C, H, W) of {image.shape} to {height} x {width} pixels"
        raise ShapeError(message, code=ErrorCode.INVALID, got=image.shape, expected=(height, width))
    if image.shape[1:] == (height, width):
        return image
    if image.dtype == np.uint8 and _has_kernels():
        from demitasse.io.data.images.resize_kernel import resized

        return resized(image, height, width, step)
    return portable(image, height, width, step)


@cache
def _has_kernels() -> bool:
    """Return True if JIT kernels are available; cached, as each image asks."""
    return status().ready


def portable(image: np.ndarray, height: int, width: int, step: float | None = None) -> np.ndarray:
    """Resize an image in numpy, with the same bits as the kernel of ``resize_image``."""
    _, H, W = image.shape
    rows, columns = shares(H, height, step, clamp=False), shares(W, width, step)
    needed, place = np.unique(np.concatenate([rows.first, rows.second]), return_inverse=True)
    # numpy is slow on the memory layout of decoded images.
    planes = np.ascontiguousarray(image if len(needed) == H else image[:, needed])
    squeezed = planes.take(columns.first, axis=2) * (ONE - columns.share)
    squeezed += planes.take(columns.second, axis=2) * columns.share
    squeezed >>= 4
    total = (squeezed.take(place[:height], axis=1) * (ONE - rows.share)[:, None]) >> 16
    total += (squeezed.take(place[height:], axis=1) * rows.share[:, None]) >> 16
    total += 2
    total >>= 2
    return np.asarray(np.clip(total, 0, 255), np.uint8)


def resize_values(
    image: np.ndarray, height: int, width: int, step: float | None = None
) -> np.ndarray:
    """Resize a float32 image; see ``resize_image``. Shapes: (C, H, W) -> (C, height, width)."""
    _, H, W = image.shape
    left, right, across = samples(W, width, step)
    rows = image[:, :, left] * (1 - across) + image[:, :, right] * across
    above, below, down = samples(H, height, step, clamp=False)
    return np.asarray(rows[:, above] * (1 - down)[:, None] + rows[:, below] * down[:, None])
