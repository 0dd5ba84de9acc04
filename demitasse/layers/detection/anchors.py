"""Anchors of a region proposal network, and the boxes that are predicted relative to them.

Host code on numpy arrays. Boxes are (x1, y1, x2, y2) in pixels, the last ones included.

Source: Faster R-CNN (rbgirshick/py-faster-rcnn), ``lib/rpn/generate_anchors.py``,
``lib/fast_rcnn/bbox_transform.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["anchors", "moved", "spread"]


def anchors(base: int, ratios: Sequence[float], scales: Sequence[float]) -> np.ndarray:
    """Return boxes of the same centre in every shape and size, shapes first.

    Args:
        base: Side of a square whose area all have at scale 1, in pixels; it begins at 0.
        ratios: Height over width; sides are rounded to whole pixels.
        scales: What the sides are multiplied by.

    Returns:
        Shape: (ratios x scales, 4).
    """
    centre, made = (base - 1) / 2, []
    for ratio in ratios:
        width = np.rint(np.sqrt(base * base / ratio))
        height = np.rint(width * ratio)
        for scale in scales:
            half = (np.array([width, height]) * scale - 1) / 2
            made.append(np.concatenate([centre - half, centre + half]))
    return np.array(made)


def spread(boxes: np.ndarray, cells: tuple[int, int], stride: int) -> np.ndarray:
    """Return boxes around every cell of a map, row by row.

    Args:
        boxes: Those of the first cell. Shape: (A, 4).
        cells: Height and width of the map.
        stride: Pixels from one cell to the next.

    Returns:
        Shape: (height, width, A, 4).
    """
    y, x = np.meshgrid(*(np.arange(n) * stride for n in cells), indexing="ij")
    every: np.ndarray = boxes + np.stack([x, y, x, y], axis=-1)[:, :, None, :]
    return every


def moved(boxes: np.ndarray, deltas: np.ndarray) -> np.ndarray:
    """Return boxes whose centres are shifted in proportion and whose sides are scaled.

    Args:
        boxes: Shape: (..., 4).
        deltas: Shift of the centre (x, y), and logarithms of the factors. Shape: (..., 4).
    """
    size = boxes[..., 2:] - boxes[..., :2] + 1
    centre = boxes[..., :2] + size / 2 + deltas[..., :2] * size
    half = np.exp(deltas[..., 2:]) * size / 2
    return np.concatenate([centre - half, centre + half], axis=-1)
