"""Rounding to 8-bit pixels."""

from __future__ import annotations

import numpy as np

__all__ = ["rounded"]


def rounded(values: np.ndarray) -> np.ndarray:
    """Round values and clip them to 0 to 255. Shapes: any, the same, uint8."""
    return np.asarray(np.clip(np.rint(values), 0, 255), np.uint8)
