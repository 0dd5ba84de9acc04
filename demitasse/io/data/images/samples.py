"""Source pixels and weights of bilinear resizing.

Source: OpenCV, ``modules/imgproc/src/resize.cpp`` (``INTER_LINEAR``).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

ONE = 1 << 11
"""Sum of the weights of two neighbours."""


class Shares(NamedTuple):
    """Source pixels of new pixels along one axis.

    Attributes:
        first: First neighbour, int32. Shape: (wanted,).
        second: Second neighbour.
        share: Weight of the second neighbour, in units of 1 / 2048, int32.
    """

    first: np.ndarray
    second: np.ndarray
    share: np.ndarray


@lru_cache(256)
def shares(size: int, wanted: int, step: float | None, *, clamp: bool = True) -> Shares:
    """Return ``samples`` with fixed-point weights. Cached arrays: do not modify."""
    first, second, fraction = samples(size, wanted, step, clamp=clamp)
    return Shares(first, second, np.rint(fraction * np.float32(ONE)).astype(np.int32))


def samples(
    size: int, wanted: int, step: float | None, *, clamp: bool = True
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return per new pixel its two source pixels and the weight of the second.

    Args:
        size: Old number of pixels.
        wanted: New number of pixels.
        step: Old pixels per new pixel; None: from the sizes.
        clamp: Use an edge pixel alone for positions outside the image.

    Returns:
        Two arrays of indices, int32, and the weights, float32. Shapes: (wanted,).
    """
    scale = 1.0 / (wanted / size) if step is None else step
    place = ((np.arange(wanted) + 0.5) * scale - 0.5).astype(np.float32)
    first = np.floor(place).astype(np.int32)
    fraction = place - first.astype(np.float32)
    if clamp:
        outside = (first < 0) | (first >= size - 1)
        fraction[outside] = 0
    return np.clip(first, 0, size - 1), np.clip(first + 1, 0, size - 1), fraction
