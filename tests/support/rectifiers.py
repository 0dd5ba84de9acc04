"""Rectifiers of our own kernels, and what the layers' formulas make of the same sums."""

import numpy as np
import pytest

from demitasse.backends.kernels.epilogue import NOTHING, RELU, Rectifier

RELU6, CLIP = Rectifier(limits=(0.0, 6.0)), Rectifier(limits=(-0.5, 0.75))

THEN = pytest.mark.parametrize(
    "then", [NOTHING, RELU, RELU6, CLIP], ids=["nothing", "ReLU", "ReLU6", "Clip"]
)

NOT_NUMBERS = np.array([np.nan, np.inf, -np.inf], np.float32)
"""Offsets of three channels that decide their outputs."""


def rectified(then, sums):
    """Return what the layers make of sums."""
    if then.limits:
        low, high = then.limits
        return np.maximum(np.minimum(sums, high), low)
    with np.errstate(invalid="ignore"):
        return np.maximum(sums, 0) + then.slope * np.minimum(sums, 0)
