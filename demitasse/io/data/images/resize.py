"""Resize images as OpenCV's ``cv::resize`` does by default: bilinear, in 11-bit fixed point.

Shrinking does not average what lies between the sampled pixels, unlike in Pillow; nets were trained
on images made like this.

Source: OpenCV, ``modules/imgproc/src/resize.cpp`` (``INTER_LINEAR`` on 8-bit pixels).
"""

from __future__ import annotations

from functools import cache

import numpy as np

from demitasse.backends.kernels.language import status
from demitasse.errors import ShapeError
from demitasse.io.data.images.samples import ONE, samples, shares

__all__ = ["portable", "resize_image", "resize_values"]


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

    Raises:
        ShapeError: The image does not have three axes, or one of the sizes is none.
    """
    if image.ndim != 3 or min(*image.shape[1:], height, width) < 1:
        message = f"an image (C, H, W) of {image.shape} cannot become {height} x {width} pixels"
        raise ShapeError(message)
    if image.shape[1:] == (height, width):
        return image
    if image.dtype == np.uint8 and _has_kernels():
        from demitasse.io.data.images.resize_kernel import resized

        return resized(image, height, width, step)
    return portable(image, height, width, step)


@cache
def _has_kernels() -> bool:
    """Whether kernels can be made; asked once, since every image would ask again."""
    return status().ready


def portable(image: np.ndarray, height: int, width: int, step: float | None = None) -> np.ndarray:
    """As ``resize_image``, which gives the same bits where a kernel can be made for it."""
    _, H, W = image.shape
    rows, columns = shares(H, height, step, clamp=False), shares(W, width, step)
    needed, place = np.unique(np.concatenate([rows.first, rows.second]), return_inverse=True)
    # The layout of decoded images, and of what numpy's indexing makes of them, is slow here.
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
    """Return an image of float32 in another size; see ``resize_image``.

    Shapes: (C, H, W) -> (C, height, width).
    """
    _, H, W = image.shape
    left, right, across = samples(W, width, step)
    rows = image[:, :, left] * (1 - across) + image[:, :, right] * across
    above, below, down = samples(H, height, step, clamp=False)
    return np.asarray(rows[:, above] * (1 - down)[:, None] + rows[:, below] * down[:, None])
