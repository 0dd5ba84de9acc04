"""Pooling: which Step for which window."""

from __future__ import annotations

import math

from demitasse.backends import ops
from demitasse.backends.numpy.engine import Engine
from demitasse.backends.numpy.planes import LEAD, PoolStep
from demitasse.backends.numpy.steps.pool_average import AverageStep, GlobalAverageStep
from demitasse.backends.numpy.steps.pool_max import GlobalMaxStep, MaxStep
from demitasse.backends.step import Declined, Operands

__all__ = ["pool"]

MOST_TAPS = 1 << 14
"""Larger windows, of which there are few, run the portable code."""


def pool(engine: Engine, op: ops.Pool, at: Operands) -> PoolStep:
    """Return the Step for MAX or AVE pooling.

    Raises:
        Declined: STOCHASTIC, which few nets use, or a very large window.
    """
    if op.method == "STOCHASTIC":
        message = "STOCHASTIC; numpy's Steps are for MAX and AVE"
        raise Declined(message)
    whole = op.kernel == op.bottom[LEAD:] and not any(op.pad) and set(op.top[LEAD:]) == {1}
    if op.method == "AVE":
        return GlobalAverageStep(engine, op, at) if whole else AverageStep(engine, op, at)
    if whole:
        return GlobalMaxStep(engine, op, at)
    taps = math.prod(op.kernel)
    if taps > MOST_TAPS:
        message = f"windows of {taps} elements; numpy's Step takes {MOST_TAPS}"
        raise Declined(message)
    return MaxStep(engine, op, at)
