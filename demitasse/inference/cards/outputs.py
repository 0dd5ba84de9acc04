"""From a net's outputs to answers, one function for each task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from demitasse.errors import ConfigError
from demitasse.inference.cards.anchors import priors
from demitasse.inference.cards.answers import Answer, Box, Boxes, Classes, Features, Segments
from demitasse.inference.cards.card import Card, Detect
from demitasse.inference.cards.preparing import View
from demitasse.layers.detection.detection_output import Detector

__all__ = ["Outputs", "Reader", "reader_of"]

Outputs = Mapping[str, np.ndarray]

Reader = Callable[[Outputs, Sequence[View]], list[Answer]]
"""Makes answers of the outputs of a batch and of what it shows of each image."""


def reader_of(card: Card, *, softmax: bool, threshold: float | None = None) -> Reader:
    """Return what reads the outputs of a card's net.

    Args:
        card: The card.
        softmax: Whether scores of classes are still to be brought to probabilities.
        threshold: Least score of a box; None for the card's.
    """
    least = card.detect.threshold if threshold is None else threshold

    def classes(outputs: Outputs, views: Sequence[View]) -> list[Answer]:
        return _classes(_only(outputs), len(views), card.labels, softmax=softmax)

    def boxes(outputs: Outputs, views: Sequence[View]) -> list[Answer]:
        if card.detect.boxes:
            rows = _rows_of_anchors(outputs, views[0].input, card.detect, least)
        else:
            rows = _rows(_only(outputs))
        return _boxes(rows, views, card.labels, least)

    def segments(outputs: Outputs, views: Sequence[View]) -> list[Answer]:
        return _segments(_only(outputs), views, card.labels)

    def features(outputs: Outputs, views: Sequence[View]) -> list[Answer]:
        return _features(outputs, len(views))

    return {"classify": classes, "detect": boxes, "segment": segments, "features": features}[
        card.task
    ]


def _only(outputs: Outputs) -> np.ndarray:
    """Return the one output that this task reads."""
    if len(outputs) != 1:
        message = (
            f"the net has the outputs {', '.join(outputs) or 'none'}; [model] output of the card "
            "names the one to read"
        )
        raise ConfigError(message)
    return next(iter(outputs.values()))


def _classes(
    scores: np.ndarray, count: int, labels: Sequence[str], *, softmax: bool
) -> list[Answer]:
    """Shapes: scores (N, classes, 1...)."""
    if scores.ndim < 2 or len(scores) != count or scores[0].size != scores.shape[1]:
        message = (
            f"the output is {scores.shape} for {count} images; for task classify it must have one "
            "score for each class of each image: (N, classes)"
        )
        raise ConfigError(message)
    rows = scores.reshape(count, -1)
    if labels and len(labels) != rows.shape[1]:
        message = f"there are {len(labels)} labels, but the net has {rows.shape[1]} classes"
        raise ConfigError(message)
    if softmax:
        rows = np.exp(rows - rows.max(axis=1, keepdims=True))
        rows /= rows.sum(axis=1, keepdims=True)
    return [Classes(row, labels) for row in rows]


def _rows(found: np.ndarray) -> np.ndarray:
    """Return what a layer DetectionOutput has found. Shapes: (1, 1, K, 7) -> (K, 7)."""
    if found.ndim < 2 or found.shape[-1] != 7:
        message = (
            f"the output is {found.shape}; for task detect it must be that of a layer "
            "DetectionOutput, (1, 1, K, 7), or [detect] names boxes, scores and anchors"
        )
        raise ConfigError(message)
    return found.reshape(-1, 7)


def _rows_of_anchors(
    outputs: Outputs, size: tuple[int, int], detect: Detect, threshold: float
) -> np.ndarray:
    """Return what is found among predictions for anchors. Shape: (K, 7)."""
    assert detect.anchors is not None
    prior = priors(detect.anchors, size)
    codes, scores = outputs[detect.boxes], outputs[detect.scores]
    count = prior.shape[1]
    if codes.ndim < 2 or codes[0].size != count * 4 or scores[0].size % count or codes.shape[0] < 1:
        message = (
            f"[detect.anchors] make {count} boxes for an input of {size[0]} x {size[1]} pixels, "
            f"but output {detect.boxes!r} is {codes.shape} and {detect.scores!r} {scores.shape}"
        )
        raise ConfigError(message)
    n, classes = len(codes), scores[0].size // count
    found = Detector(
        classes=classes,
        background=detect.background,
        code="CENTER_SIZE",
        variance_in_target=False,
        confidence=float(np.nextafter(np.float32(threshold), np.float32(-1))),
        overlap=detect.overlap,
        eta=1.0,
        top_k=400,
        keep=200,
    )
    return found(codes.reshape(n, count, 1, 4), scores.reshape(n, count, classes), prior)


def _boxes(
    rows: np.ndarray, views: Sequence[View], labels: Sequence[str], threshold: float
) -> list[Answer]:
    """Shapes: rows (K, 7): image, class, score, box; class -1 where an image has nothing."""
    answers: list[Answer] = []
    for image, view in enumerate(views):
        mine = rows[(rows[:, 0] == image) & (rows[:, 1] >= 0) & (rows[:, 2] >= threshold)]
        mine = mine[np.argsort(-mine[:, 2], kind="stable")]
        placed = view.boxes_in_image(mine[:, 3:])
        answers.append(
            Boxes([_box(row, edges, labels) for row, edges in zip(mine, placed, strict=True)])
        )
    return answers


def _box(row: np.ndarray, edges: np.ndarray, labels: Sequence[str]) -> Box:
    index = int(row[1])
    label = labels[index] if index < len(labels) else str(index)
    xmin, ymin, xmax, ymax = (round(float(edge), 2) for edge in edges)
    return Box(index, label, float(row[2]), xmin, ymin, xmax, ymax)


def _segments(scores: np.ndarray, views: Sequence[View], labels: Sequence[str]) -> list[Answer]:
    """Shapes: scores (N, classes, h, w)."""
    if scores.ndim != 4 or len(scores) != len(views) or scores.shape[1] < 2:
        message = (
            f"the output is {scores.shape}; for task segment it must have a score for each class "
            "and place: (N, classes, h, w)"
        )
        raise ConfigError(message)
    best = scores.argmax(axis=1).astype(np.int32)
    pairs = zip(best, views, strict=True)
    return [Segments(view.mask_in_image(mask), labels) for mask, view in pairs]


def _features(outputs: Outputs, count: int) -> list[Answer]:
    for name, array in outputs.items():
        if array.ndim < 1 or len(array) != count:
            message = (
                f"output {name!r} is {array.shape} for {count} images; for task features its first "
                "axis is that of the images"
            )
            raise ConfigError(message)
    return [
        Features({name: array[i].copy() for name, array in outputs.items()}) for i in range(count)
    ]
