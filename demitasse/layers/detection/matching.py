"""Which priors are to predict which objects, and which of them count.

Host code on numpy arrays: choices that depend on values.

Source: SSD (weiliu89/caffe), ``MatchBBox`` and ``MineHardExamples`` in
``src/caffe/util/bbox_util.cpp``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from demitasse.layers.detection.boxes import overlaps, suppress

__all__ = ["IGNORED", "UNMATCHED", "Mining", "Nms", "match"]

UNMATCHED, IGNORED = -1, -2
"""Instead of an object: a prior that has none, and one that does not count at all."""

LEAST = 1e-6
"""An overlap that is not above this is none."""
SMALL = 1e-5
"""A box of a smaller area is not mined where overlapping ones are suppressed."""


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


@dataclass(frozen=True)
class Nms:
    """Suppression among the boxes that may be mined.

    Attributes:
        overlap: The largest one that may stay.
        top_k: Boxes that are looked at, and that stay; -1 for all.
    """

    overlap: float
    top_k: int

    def best(self, losses: np.ndarray, boxes: np.ndarray) -> np.ndarray:
        """Return which boxes stay, the greatest losses first. Shapes: (K,), (K, 4) -> (kept,)."""
        order = np.argsort(-losses, kind="stable")
        if self.top_k > -1:
            order = order[: self.top_k]
        sides = boxes[order, 2:] - boxes[order, :2]
        order = order[np.where((sides < 0).any(axis=1), 0, sides.prod(axis=1)) >= SMALL]
        kept: np.ndarray = order[suppress(boxes[order], self.overlap)]
        return kept


@dataclass(frozen=True)
class Mining:
    """Which priors of an image count.

    Attributes:
        hard: Whether the ``count`` of greatest loss among all do, or else the matched ones, and of
            the others ``ratio`` times as many.
        ratio: See ``hard``.
        below: An unmatched prior counts only if no object overlaps it so much, unless ``hard``.
        count: See ``hard``.
        nms: Suppression among the candidates, or None.
    """

    hard: bool
    ratio: float
    below: float
    count: int
    nms: Nms | None

    def choose(
        self, found: np.ndarray, most: np.ndarray, losses: np.ndarray, boxes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return which priors count as matched and which as unmatched.

        Args:
            found: See :func:`match`. Shape: (P,).
            most: See :func:`match`. Shape: (P,).
            losses: What they lose. Shape: (P,).
            boxes: What is suppressed where they overlap. Shape: (P, 4).

        Returns:
            Shapes: (P,) and (P,), bool.
        """
        matched = found >= 0
        if self.hard:
            candidates, count = np.arange(len(found)), self.count
        else:
            candidates = np.flatnonzero((found == UNMATCHED) & (most < self.below))
            count = int(np.count_nonzero(matched) * self.ratio)
        if self.nms is not None:
            order = self.nms.best(losses[candidates], boxes[candidates])
        else:
            order = np.argsort(-losses[candidates], kind="stable")
        chosen = np.zeros(len(found), bool)
        chosen[candidates[order[:count]]] = True
        unmatched = chosen & (found == UNMATCHED)
        return (matched & chosen if self.hard else matched), unmatched
