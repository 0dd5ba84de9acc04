"""Which priors, or regions, of a batch are trained on: those that lose most.

Host code on numpy arrays.

Source: SSD (weiliu89/caffe), ``MineHardExamples`` in ``src/caffe/util/bbox_util.cpp``; R-FCN
(daijifeng001/caffe-rfcn), ``src/caffe/layers/box_annotator_ohem_layer.cu``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from demitasse.layers.detection.assignment import Assignment
from demitasse.layers.detection.boxes import suppress
from demitasse.layers.detection.matching import UNMATCHED

__all__ = ["Mining", "Nms", "all_count", "hardest"]

SMALL = 1e-5
"""A box of a smaller area is not mined where overlapping ones are suppressed."""

Chosen = tuple[np.ndarray, np.ndarray]
"""Which priors count for their boxes (N, P, L) and for their classes (N, P), bool."""


def all_count(made: Assignment) -> Chosen:
    """Return all matched priors, and all for their classes."""
    n, _, priors = made.found.shape
    return _matched(made), np.ones((n, priors), bool)


def hardest(items: np.ndarray, losses: np.ndarray, count: int) -> np.ndarray:
    """Return which are the ``count`` of greatest loss in each item. Shapes: (K,), (K,) -> (K,)."""
    chosen = np.zeros(len(losses), bool)
    order = np.argsort(-losses, kind="stable")
    for item in np.unique(items):
        chosen[order[items[order] == item][:count]] = True
    return chosen


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

    def __call__(
        self, made: Assignment, of_boxes: np.ndarray, of_classes: np.ndarray, boxes: np.ndarray
    ) -> Chosen:
        """Return which priors of a batch count; none of an image without objects.

        Args:
            made: What they should predict, a box for all classes.
            of_boxes: What they lose in their boxes. Shape: (N, P, 1).
            of_classes: What they lose in their classes. Shape: (N, P).
            boxes: What is suppressed where they overlap. Shape: (P, 4) or (N, P, 4).
        """
        matched, counted = _matched(made), np.zeros(of_classes.shape, bool)
        losses = of_classes
        if self.hard:
            losses = losses + np.where(matched, of_boxes, 0)[:, :, 0]
        boxes = np.broadcast_to(boxes, (*of_classes.shape, 4))
        for i in np.flatnonzero(made.some):
            found, most = made.found[i, 0], made.most[i, 0]
            yes, no = self.choose(found, most, losses[i], boxes[i])
            matched[i, :, 0], counted[i] = yes, yes | no
        return matched, counted

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


def _matched(made: Assignment) -> np.ndarray:
    """Return which boxes have an object. Shape: (N, P, L)."""
    matched: np.ndarray = np.ascontiguousarray((made.found >= 0).transpose(0, 2, 1))
    return matched
