"""Suppression of boxes that overlap better ones: ``NMSBoxes``.

Source: OpenCV 4, ``modules/dnn/src/nms.cpp``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from demitasse.compat.cvdnn.errors import error, failing_as

__all__ = ["NMSBoxes", "NMSBoxesBatched", "found_or_empty"]

Boxes = Sequence[Sequence[float]] | np.ndarray
Numbers = Sequence[float] | np.ndarray

EPS = float(np.finfo(np.float64).eps)


@failing_as("NMSBoxes")
def NMSBoxes(
    bboxes: Boxes,
    scores: Numbers,
    score_threshold: float,
    nms_threshold: float,
    eta: float = 1.0,
    top_k: int = 0,
) -> np.ndarray | tuple[()]:
    """Return the indices of the boxes that stay, the best first.

    Args:
        bboxes: Boxes of x, y, width and height. Shape: (K, 4).
        scores: How good each is. Shape: (K,).
        score_threshold: A score must be above it.
        nms_threshold: A box goes whose intersection over union with one that stays is above it.
        eta: Below 1, a threshold above a half is multiplied by it after every box that stays.
        top_k: So many of the best boxes are looked at; 0 for all.

    Returns:
        Indices, int32, or an empty tuple where no box stays, as OpenCV's function.

    Raises:
        error: There is not one score for each box, or a threshold is out of range.
    """
    boxes, values = _checked(bboxes, scores, score_threshold, nms_threshold, eta)
    order = np.argsort(-values, kind="stable")
    order = order[values[order] > np.float32(score_threshold)]
    if top_k > 0:
        order = order[:top_k]
    limit = np.float32(nms_threshold)
    kept: list[int] = []
    for index in order:
        overlap = _overlaps(boxes[index], boxes[kept])
        if (overlap <= limit).all():
            kept.append(int(index))
            if eta < 1 and limit > 0.5:
                limit = np.float32(limit * np.float32(eta))
    return found_or_empty(np.array(kept, np.int32))


@failing_as("NMSBoxesBatched")
def NMSBoxesBatched(
    bboxes: Boxes,
    scores: Numbers,
    class_ids: Sequence[int] | np.ndarray,
    score_threshold: float,
    nms_threshold: float,
    eta: float = 1.0,
    top_k: int = 0,
) -> np.ndarray | tuple[()]:
    """As ``NMSBoxes``, but boxes of different classes do not suppress each other.

    They are set apart by a distance that is larger than any of them.

    Raises:
        error: See ``NMSBoxes``; or there is not one class for each box.
    """
    boxes, values = _checked(bboxes, scores, score_threshold, nms_threshold, eta)
    classes = np.asarray(class_ids, np.float64).reshape(-1)
    if len(classes) != len(boxes):
        message = f"{len(boxes)} boxes have {len(classes)} class_ids; each needs one"
        raise error(message)
    if not len(boxes):
        return ()
    apart = boxes.copy()
    far = (boxes[:, :2] + boxes[:, 2:]).max() + 1
    apart[:, :2] += (classes * far)[:, None]
    return NMSBoxes(apart, values, score_threshold, nms_threshold, eta, top_k)


def found_or_empty(found: np.ndarray) -> np.ndarray | tuple[()]:
    """Return what was found; an empty tuple for nothing, as OpenCV's Python functions do."""
    return found if len(found) else ()


def _checked(
    bboxes: Boxes, scores: Numbers, score_threshold: float, nms_threshold: float, eta: float
) -> tuple[np.ndarray, np.ndarray]:
    boxes = np.asarray(bboxes, np.float64)
    values = np.asarray(scores, np.float32).reshape(-1)
    if boxes.size and (boxes.ndim != 2 or boxes.shape[1] != 4):
        message = f"bboxes must be (K, 4): x, y, width and height; they are {boxes.shape}"
        raise error(message)
    boxes = boxes.reshape(-1, 4)
    if len(boxes) != len(values):
        message = f"{len(boxes)} boxes have {len(values)} scores; each needs one"
        raise error(message)
    if score_threshold < 0 or nms_threshold < 0 or eta <= 0:
        message = (
            "score_threshold and nms_threshold must be 0 or more and eta above 0; they are "
            f"{score_threshold}, {nms_threshold} and {eta}"
        )
        raise error(message)
    return boxes, values


def _overlaps(box: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Return intersection over union of a box with others. Shapes: (4,), (K, 4) -> (K,)."""
    area, areas = box[2] * box[3], boxes[:, 2] * boxes[:, 3]
    low = np.maximum(box[:2], boxes[:, :2])
    sides = np.minimum(box[:2] + box[2:], boxes[:, :2] + boxes[:, 2:]) - low
    shared = np.where((sides > 0).all(axis=1), sides[:, 0] * sides[:, 1], 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        distance = 1.0 - shared / (area + areas - shared)
    distance = np.where(area + areas <= EPS, 0.0, distance)
    ratio: np.ndarray = np.float32(1) - distance.astype(np.float32)
    return ratio
