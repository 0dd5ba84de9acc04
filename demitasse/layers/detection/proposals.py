"""Regions that may hold an object, chosen from anchors.

Host code on numpy arrays.

Source: Faster R-CNN (rbgirshick/py-faster-rcnn), ``lib/rpn/proposal_layer.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from demitasse.layers.detection.anchors import moved, spread
from demitasse.layers.detection.boxes import suppress

__all__ = ["Proposer"]


@dataclass(frozen=True)
class Proposer:
    """Chooses regions.

    Attributes:
        anchors: Boxes of the first cell. Shape: (A, 4).
        stride: Pixels from one cell to the next.
        least: Least side of a region, in pixels of the unscaled image.
        looked_at: Regions of an image that may stay, the best; 0 for all.
        keep: Regions of an image that do; 0 for all.
        overlap: See ``suppress``.
    """

    anchors: np.ndarray
    stride: int
    least: float
    looked_at: int
    keep: int
    overlap: float

    def __call__(
        self, scores: np.ndarray, deltas: np.ndarray, images: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the regions of a batch with their images, and their scores.

        Args:
            scores: Those of the background, then those of objects. Shape: (N, 2 A, H, W).
            deltas: What moves the anchors. Shape: (N, 4 A, H, W).
            images: Height, width and scale of each. Shape: (N, 3).

        Returns:
            Shapes: (R, 5) and (R, 1).
        """
        scores = scores[:, len(self.anchors) :].transpose(0, 2, 3, 1)  # (N, H, W, A)
        n, height, width = scores.shape[:3]
        deltas = deltas.transpose(0, 2, 3, 1).reshape(*scores.shape, 4)
        placed = spread(self.anchors, (height, width), self.stride).astype(deltas.dtype)
        with np.errstate(over="ignore"):
            boxes = moved(placed, deltas)
        regions, best = [], []
        for i in range(n):
            kept, score = self._choose(boxes[i].reshape(-1, 4), scores[i].reshape(-1), images[i])
            regions.append(np.insert(kept, 0, i, axis=1))
            best.append(score[:, None])
        return np.concatenate(regions), np.concatenate(best)

    def _choose(
        self, boxes: np.ndarray, scores: np.ndarray, image: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the regions of an image and their scores, the best first.

        Args:
            boxes: Shape: (K, 4).
            scores: Shape: (K,).
            image: Height, width and scale.
        """
        height, width, scale = image.tolist()
        boxes = np.clip(boxes, 0, np.array([width - 1, height - 1] * 2, boxes.dtype))
        large = (boxes[:, 2:] - boxes[:, :2] + 1 >= self.least * scale).all(axis=1)
        candidates = np.flatnonzero(large)
        order = candidates[np.argsort(-scores[candidates], kind="stable")]
        order = order[: self.looked_at or None]
        ends = boxes[order] + np.array([0, 0, 1, 1], boxes.dtype)  # behind the last pixels
        order = order[suppress(ends, self.overlap)][: self.keep or None]
        return boxes[order], scores[order]
