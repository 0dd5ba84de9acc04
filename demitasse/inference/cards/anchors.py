"""Boxes of detectors whose last layer is left to the program: predictions and what they are of."""

from __future__ import annotations

import math

import numpy as np

from demitasse.inference.cards.card import Anchors
from demitasse.layers.detection.prior_box import prior_boxes

__all__ = ["priors"]


def priors(anchors: Anchors, input_size: tuple[int, int]) -> np.ndarray:
    """Return the boxes that predictions are relative to, and their variances.

    Each map has a cell for every step of the input, the last one may reach beyond its edge, and in
    the middle of each cell a square of every size; squares are no longer than the input.

    Args:
        anchors: Which they are.
        input_size: Height and width of the net's input, in pixels.

    Returns:
        Boxes (xmin, ymin, xmax, ymax in units of the input's sides) and variances. Shape:
        (2, P, 4), float32.
    """
    height, width = input_size
    maps = [
        prior_boxes(
            (math.ceil(height / step), math.ceil(width / step)),
            input_size,
            (step, step),
            [(0.5, 0.5)],
            [(min(side, width), min(side, height)) for side in sides],
        ).reshape(-1, 4)
        for sides, step in zip(anchors.sizes, anchors.steps, strict=True)
    ]
    boxes = np.concatenate(maps)
    return np.stack([boxes, np.broadcast_to(anchors.variance, boxes.shape)]).astype(np.float32)
