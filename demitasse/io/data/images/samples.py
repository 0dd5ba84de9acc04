"""Source pixels and weights of bilinear resizing.

Source: OpenCV, ``modules/imgproc/src/resize.cpp`` (``INTER_LINEAR``).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

ONE = 1 << 11  # sum of the weights of two neighbours


class Shares(NamedTuple):
    """Source pixels of new pixels along one axis. Shapes: (wanted,), int32.

    Attributes:
        share: Weight of the second neighbour, in units of 1 / 2048.
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
    """Return per new pixel its two source pixels, int32, and the weight of the second, float32.

    Shapes: (wanted,). ``step`` is the number of old pixels per new pixel; None: from the sizes.
    With ``clamp``, positions outside the image use an edge pixel alone.
    """
    scale = 1.0 / (wanted / size) if step is None else step
    place = ((np.arange(wanted) + 0.5) * scale - 0.5).astype(np.float32)
    first = np.floor(place).astype(np.int32)
    fraction = place - first.astype(np.float32)
    if clamp:
        outside = (first < 0) | (first >= size - 1)
        fraction[outside] = 0
    return np.clip(first, 0, size - 1), np.clip(first + 1, 0, size - 1), fraction
