"""Detections in a blob of one shape, whatever was found.

Source: OpenCV 4, ``modules/dnn/src/layers/detection_output_layer.cpp``.
"""

from __future__ import annotations

import numpy as np

__all__ = ["filled_up"]

WIDTH = 7  # image, class, score, xmin, ymin, xmax, ymax


def filled_up(rows: np.ndarray, images: int, keep: int) -> np.ndarray:
    """Return detections as OpenCV's DetectionOutput does: by image, the best first, then zeros.

    Where ``keep`` sets no limit, there are no rows of zeros.

    Shapes: rows (1, 1, K, 7), Caffe's: by image and class, of class -1 where nothing was found
    -> (1, 1, images keep, 7).
    """
    found = rows.reshape(-1, WIDTH)
    found = found[found[:, 1] >= 0]
    found = found[np.lexsort((-found[:, 2], found[:, 0]))]
    blob = np.zeros((1, 1, max(images * keep, len(found)), WIDTH), rows.dtype)
    blob[0, 0, : len(found)] = found
    return blob
