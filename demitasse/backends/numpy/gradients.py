"""Where the gradient of a parameter goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from demitasse.backends.numpy.scratch import scratch

__all__ = ["add_gradient"]


def add_gradient(blob: Any, dtype: str, compute: Callable[[np.ndarray], object]) -> None:
    """Add to a parameter's gradient what ``compute`` writes into the array it is given.

    A gradient that was cleared is written in place, without a sum.

    Shapes: the array has the shape of ``blob``.
    """
    if blob.diff_memory.head.name == "UNINITIALIZED":
        compute(blob.diff_buffer())
        return
    part = scratch("gradient", blob.shape, dtype)
    compute(part)
    blob.add_diff(part)
