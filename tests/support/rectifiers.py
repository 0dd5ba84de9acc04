"""Rectifiers of our own kernels, and what the layers' formulas make of the same sums."""

import numpy as np
import pytest

from demitasse.backends.kernels.epilogue import NOTHING, RELU, Rectifier

RELU6, CLIP = Rectifier(limits=(0.0, 6.0)), Rectifier(limits=(-0.5, 0.75))

SWISH, HARD_SWISH = Rectifier(curve="swish"), Rectifier(curve="hard_swish")

THEN = pytest.mark.parametrize(
    "then",
    [NOTHING, RELU, RELU6, CLIP, SWISH, HARD_SWISH],
    ids=["nothing", "ReLU", "ReLU6", "Clip", "Swish", "HardSwish"],
)

NOT_NUMBERS = np.array([np.nan, np.inf, -np.inf], np.float32)
"""Offsets of three channels that decide their outputs."""


def rectified(then, sums):
    """Return what the layers make of sums."""
    if then.limits:
        low, high = then.limits
        return np.maximum(np.minimum(sums, high), low)
    with np.errstate(invalid="ignore", over="ignore"):
        if then.curve == "swish":
            return sums * (1 / (1 + np.exp(-sums)))
        if then.curve == "hard_swish":
            return sums * np.minimum(np.maximum(sums + 3, 0), 6) / 6
        return np.maximum(sums, 0) + then.slope * np.minimum(sums, 0)
