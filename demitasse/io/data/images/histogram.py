"""Histogram equalisation of a gray image, global or local (CLAHE).

Agrees with OpenCV: ``equalize`` exactly, ``equalize_parts`` within one level.

Source: OpenCV, ``modules/imgproc/src/histogram.cpp`` (``equalizeHist``) and ``clahe.cpp``.
"""

from __future__ import annotations

import numpy as np

from demitasse.io.data.images.levels import rounded

__all__ = ["equalize", "equalize_parts"]

LEVELS = 256
PARTS = 8
"""Tiles per direction."""


def equalize(image: np.ndarray) -> np.ndarray:
    """Equalise the histogram of an image. Shapes: (H, W), uint8."""
    counts = np.bincount(image.ravel(), minlength=LEVELS)
    darkest = int(np.flatnonzero(counts)[0])
    brighter = image.size - counts[darkest]
    if not brighter:
        return image
    counts[darkest] = 0
    scale = np.float32(LEVELS - 1) / np.float32(brighter)
    table = np.cumsum(counts).astype(np.float32) * scale
    return np.take(rounded(table), image)


def equalize_parts(image: np.ndarray, limit: float) -> np.ndarray:
    """Equalise the histograms of 8 x 8 tiles, and interpolate between tiles (CLAHE).

    Args:
        image: Shape: (H, W), uint8.
        limit: Clip limit: largest count of a level, relative to the mean count.

    Returns:
        Shape: (H, W), uint8.
    """
    H, W = image.shape
    uneven = H % PARTS or W % PARTS
    pad = (PARTS - H % PARTS, PARTS - W % PARTS) if uneven else (0, 0)
    padded = np.pad(image, ((0, pad[0]), (0, pad[1])), "reflect" if min(H, W) > 1 else "edge")
    h, w = padded.shape[0] // PARTS, padded.shape[1] // PARTS
    parts = padded.reshape(PARTS, h, PARTS, w).swapaxes(1, 2).reshape(PARTS * PARTS, h * w)
    tables = np.stack([_table(part, limit) for part in parts]).reshape(PARTS, PARTS, LEVELS)
    above, below, down = _neighbours(H, h)
    left, right, along = _neighbours(W, w)
    down = down[:, None]
    over = tables[above[:, None], left, image] * (1 - along)
    over += tables[above[:, None], right, image] * along
    under = tables[below[:, None], left, image] * (1 - along)
    under += tables[below[:, None], right, image] * along
    result = over * (1 - down) + under * down
    return rounded(result)


def _table(part: np.ndarray, limit: float) -> np.ndarray:
    """Return the new level of each old level of a tile. Shapes: (n,) -> (256,), float32."""
    counts = np.bincount(part, minlength=LEVELS)
    most = max(int(limit * part.size / LEVELS), 1)
    beyond = int(np.maximum(counts - most, 0).sum())
    counts = np.minimum(counts, most) + beyond // LEVELS
    rest = beyond % LEVELS
    if rest:
        counts[: rest * max(LEVELS // rest, 1) : max(LEVELS // rest, 1)] += 1
    scale = np.float32(LEVELS - 1) / np.float32(part.size)
    table = np.cumsum(counts).astype(np.float32) * scale
    return np.asarray(rounded(table), np.float32)


def _neighbours(size: int, part: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return per pixel the two neighbouring tiles and the weight of the second."""
    place = np.arange(size, dtype=np.float32) * np.float32(1 / part) - np.float32(0.5)
    first = np.floor(place).astype(np.intp)
    share = place - first.astype(np.float32)
    return np.clip(first, 0, PARTS - 1), np.clip(first + 1, 0, PARTS - 1), share
