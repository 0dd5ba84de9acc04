"""Averages of BatchNorm, stored as sums with the sum of their weights.

Source: Caffe, ``BatchNormLayer`` in ``src/caffe/layers/batch_norm_layer.cpp``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["running_averages"]


def running_averages(blobs: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance; 0 before any update.

    Args:
        blobs: Sum of means, sum of variances, sum of weights. Shapes: (C,), (C,), (1,).
    """
    mean, variance, weight = blobs
    factor = float(weight.reshape(-1)[0]) if weight.size else 0.0
    times = np.float32(1 / factor) if factor else np.float32(0)
    return mean.reshape(-1) * times, variance.reshape(-1) * times
