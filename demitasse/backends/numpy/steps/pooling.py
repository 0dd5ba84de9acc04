"""Pooling: which kernel for which window."""

from __future__ import annotations

import math

from demitasse.backends import ops
from demitasse.backends.base import Backend, Operands, Step
from demitasse.backends.numpy.backend import NumpyBackend
from demitasse.backends.numpy.planes import LEAD
from demitasse.backends.numpy.steps.pool_average import AverageStep, GlobalAverageStep
from demitasse.backends.numpy.steps.pool_max import GlobalMaxStep, MaxStep

__all__ = ["pool"]

MOST_TAPS = 1 << 14
"""Larger windows, of which there are few, run the portable code."""


@NumpyBackend.lowers(ops.Pool)
def pool(backend: Backend, op: ops.Pool, at: Operands) -> Step | None:
    """MAX and AVE; STOCHASTIC, which few nets use, runs its portable code."""
    del backend
    if at.in_place or op.method == "STOCHASTIC" or 0 in op.bottom:
        return None
    whole = op.kernel == op.bottom[LEAD:] and not any(op.pad) and set(op.top[LEAD:]) == {1}
    if op.method == "MAX":
        if whole:
            return GlobalMaxStep(op, at)
        return MaxStep(op, at) if math.prod(op.kernel) <= MOST_TAPS else None
    return GlobalAverageStep(op, at) if whole else AverageStep(op, at)
