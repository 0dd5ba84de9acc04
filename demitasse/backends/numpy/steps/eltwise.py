"""Eltwise SUM without temporaries."""

from __future__ import annotations

import numpy as np

from demitasse.backends import ops
from demitasse.backends.base import Backend, Operands, Step
from demitasse.backends.numpy.backend import NumpyBackend
from demitasse.backends.numpy.scratch import scratch

__all__ = ["SumStep"]


class SumStep(Step):
    """Weighted sum of blobs of one shape; may run in place of the first."""

    def __init__(self, op: ops.Eltwise, at: Operands) -> None:
        self.op, self.at = op, at

    def lower_backward(self, operands: Operands) -> bool:
        self.at = operands
        return True

    def forward(self) -> None:
        first, *rest = (blob.read() for blob in self.at.bottom)
        y = self.at.top[0].buffer()
        weight, *weights = self.op.coefficients
        if weight != 1:
            np.multiply(first, weight, out=y)
            first = y
        for x, weight in zip(rest, weights, strict=True):
            np.add(first, self._weighted(x, weight), out=y)
            first = y

    def backward(self) -> None:
        at, dy = self.at, self.at.top[0].read_diff()
        parts = zip(at.bottom, self.op.coefficients, at.propagate_down, strict=True)
        # backwards, since in place the first bottom's gradient is the top's
        for blob, weight, down in reversed(list(parts)):
            if down and not (weight == 1 and blob is at.top[0]):
                np.multiply(dy, weight, out=blob.diff_buffer())

    def _weighted(self, x: np.ndarray, weight: float) -> np.ndarray:
        if weight == 1:
            return x
        term = scratch("term", x.shape, self.op.dtype)
        np.multiply(x, weight, out=term)
        return term


@NumpyBackend.lowers(ops.Eltwise)
def eltwise(backend: Backend, op: ops.Eltwise, at: Operands) -> Step | None:
    """SUM, in place of no bottom but the first."""
    del backend
    elsewhere = any(blob is at.top[0] for blob in at.bottom[1:])
    return SumStep(op, at) if op.operation == "SUM" and not elsewhere else None
