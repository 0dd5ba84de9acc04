"""Non-maximum suppression of boxes (``NMSBoxes``), and the blob of detections.

Source: OpenCV 4, ``modules/dnn/src/nms.cpp``, ``detection_output_layer.cpp``.
"""

from collections.abc import Sequence

import numpy as np

from demitasse.compat.cvdnn.errors import error, failing_as
from demitasse.errors import ErrorCode

Boxes = Sequence[Sequence[float]] | np.ndarray
Numbers = Sequence[float] | np.ndarray

EPS = float(np.finfo(np.float64).eps)

WIDTH = 7  # image, class, score, xmin, ymin, xmax, ymax


@failing_as("NMSBoxes")
def NMSBoxes(
    bboxes: Boxes, scores: Numbers, score_threshold: float | None,
    nms_threshold: float | None, eta: float | None = 1.0, top_k: int | None = 0,
) -> np.ndarray | tuple[()]:  # fmt: skip
    """Return the indices of the boxes that non-maximum suppression keeps, best first.

    Args:
        bboxes: Boxes of x, y, width and height. Shape: (K, 4).
        scores: Scores of the boxes. Shape: (K,).
        score_threshold: Boxes with scores up to this value are dropped.
        nms_threshold: Boxes whose IoU with a kept box exceeds this value are dropped.
        eta: Below 1, a threshold above 0.5 is multiplied by eta after each kept box.
        top_k: Number of best boxes to consider; 0 for all.

    None stands for 0, or for an ``eta`` of 1.

    Returns:
        Indices, int32, or an empty tuple for no boxes, like OpenCV.

    Raises:
        error: The number of scores differs, or a threshold is out of range.
    """
    score_threshold, nms_threshold = score_threshold or 0.0, nms_threshold or 0.0
    eta, top_k = 1.0 if eta is None else eta, top_k or 0
    boxes = _box_array(bboxes)
    values = np.asarray(scores, np.float32).reshape(-1)
    if len(boxes) != len(values):
        message = f"{len(boxes)} boxes have {len(values)} scores; each needs one"
        raise error(message, code=ErrorCode.COUNT_MISMATCH, field="scores")
    if score_threshold < 0 or nms_threshold < 0 or eta <= 0:
        message = (
            "score_threshold and nms_threshold must be 0 or more and eta above 0; they are "
            f"{score_threshold}, {nms_threshold} and {eta}"
        )
        raise error(message, code=ErrorCode.OUT_OF_RANGE)
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
    return array_or_empty(np.array(kept, np.int32))


@failing_as("NMSBoxesBatched")
def NMSBoxesBatched(
    bboxes: Boxes, scores: Numbers, class_ids: Sequence[int] | np.ndarray,
    score_threshold: float | None, nms_threshold: float | None, eta: float | None = 1.0,
    top_k: int | None = 0,
) -> np.ndarray | tuple[()]:  # fmt: skip
    """Return the indices of the boxes that ``NMSBoxes`` keeps in each class; see there.

    Boxes of different classes are shifted apart by more than the largest coordinate, if positive.
    """
    boxes = _box_array(bboxes)
    classes = np.asarray(class_ids, np.float64).reshape(-1)
    if len(classes) != len(boxes):
        message = f"{len(boxes)} boxes have {len(classes)} class_ids; each needs one"
        raise error(message, code=ErrorCode.COUNT_MISMATCH, field="class_ids")
    far = (boxes[:, :2] + boxes[:, 2:]).max(initial=0) + 1
    apart = np.hstack([boxes[:, :2] + (classes * far)[:, None], boxes[:, 2:]])
    return NMSBoxes(apart, scores, score_threshold, nms_threshold, eta, top_k)


def array_or_empty(array: np.ndarray) -> np.ndarray | tuple[()]:
    """Return the array; an empty tuple for an empty array, like OpenCV's Python functions."""
    return array if len(array) else ()


def _box_array(bboxes: Boxes) -> np.ndarray:
    """Return boxes as an array. Shape: (K, 4), float64."""
    boxes = np.asarray(bboxes, np.float64)
    if boxes.size and (boxes.ndim != 2 or boxes.shape[1] != 4):
        message = f"bboxes must be (K, 4): x, y, width and height; they are {boxes.shape}"
        raise error(message, code=ErrorCode.SHAPE_MISMATCH, field="bboxes")
    return boxes.reshape(-1, 4)


def _overlaps(box: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Return the IoU of a box with other boxes. Shapes: (4,), (K, 4) -> (K,)."""
    area, areas = box[2] * box[3], boxes[:, 2] * boxes[:, 3]
    low = np.maximum(box[:2], boxes[:, :2])
    sides = np.minimum(box[:2] + box[2:], boxes[:, :2] + boxes[:, 2:]) - low
    shared = np.where((sides > 0).all(axis=1), sides[:, 0] * sides[:, 1], 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        distance = 1.0 - shared / (area + areas - shared)
    distance = np.where(area + areas <= EPS, 0.0, distance)
    ratio: np.ndarray = np.float32(1) - distance.astype(np.float32)
    return ratio


def padded_detections(rows: np.ndarray, images: int, keep: int) -> np.ndarray:
    """Return detections like OpenCV's DetectionOutput: by image, best first, padded with zeros.

    Without a limit ``keep`` there is no padding.

    Shapes: rows (1, 1, K, 7) like Caffe's: by image and class, class -1 for an image without
    detections -> (1, 1, images * keep, 7).
    """
    found = rows.reshape(-1, WIDTH)
    found = found[found[:, 1] >= 0]
    found = found[np.lexsort((-found[:, 2], found[:, 0]))]
    blob = np.zeros((1, 1, max(images * keep, len(found)), WIDTH), rows.dtype)
    blob[0, 0, : len(found)] = found
    return blob
