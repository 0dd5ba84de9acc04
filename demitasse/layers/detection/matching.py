"""Which priors are to predict which objects.

Host code on numpy arrays: choices that depend on values.

Source: SSD (weiliu89/caffe), ``MatchBBox`` in ``src/caffe/util/bbox_util.cpp``.
"""

from __future__ import annotations

import numpy as np

from demitasse.layers.detection.boxes import overlaps

__all__ = ["IGNORED", "UNMATCHED", "match"]

UNMATCHED, IGNORED = -1, -2
"""Instead of an object: a prior that has none, and one that does not count at all."""

LEAST = 1e-6
"""An overlap that is not above this is none."""


def match(
    objects: np.ndarray, boxes: np.ndarray, threshold: float | None, *, inside: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Give each object its best box, then each other box the object it overlaps enough.

    The pair of greatest overlap comes first; an object is given one box in this way, and none if no
    box that is left overlaps it.

    Args:
        objects: Shape: (G, 4).
        boxes: Shape: (P, 4).
        threshold: The overlap from which a box is given its best object; None for no more boxes.
        inside: Whether boxes that reach beyond the image are ignored.

    Returns:
        The object of each box, UNMATCHED or IGNORED, and the overlap with it, or for unmatched
        boxes the greatest one with any object. Shapes: (P,) and (P,).
    """
    found = np.full(len(boxes), UNMATCHED)
    if inside:
        found[((boxes < 0) | (boxes > 1)).any(axis=1)] = IGNORED
    most = np.zeros(len(boxes), boxes.dtype)
    if not len(objects):
        return found, most
    table = np.stack([overlaps(one, boxes) for one in objects], axis=1)  # (P, G)
    table[table <= LEAST] = 0
    table[found == IGNORED] = 0
    most = table.max(axis=1)
    left = table.copy()
    for _ in range(len(objects)):
        box, number = divmod(int(np.argmax(left)), len(objects))
        if not left[box, number] > 0:
            break
        found[box], most[box] = number, left[box, number]
        left[box], left[:, number] = 0, 0
    if threshold is not None:
        others = (found == UNMATCHED) & (most >= threshold) & (most > 0)
        found[others] = table[others].argmax(axis=1)
    return found, most
