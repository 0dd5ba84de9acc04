"""Which old pixels new ones are made of when an image is resized.

Source: OpenCV, ``modules/imgproc/src/resize.cpp`` (``INTER_LINEAR``).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

__all__ = ["ONE", "Shares", "samples", "shares"]

ONE = 1 << 11
"""The sum of the shares of two neighbours."""


class Shares(NamedTuple):
    """What the new pixels of a row, or of a column, are made of.

    Attributes:
        first: The one old neighbour of each, int32. Shape: (wanted,).
        second: The other one.
        share: The second's, in units of 1 / 2048, int32; the first has the rest.
    """

    first: np.ndarray
    second: np.ndarray
    share: np.ndarray


@lru_cache(256)
def shares(size: int, wanted: int, step: float | None, *, clamp: bool = True) -> Shares:
    """As ``samples``, with whole shares. The arrays are kept, and only read."""
    first, second, fraction = samples(size, wanted, step, clamp=clamp)
    return Shares(first, second, np.rint(fraction * np.float32(ONE)).astype(np.int32))


def samples(
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
