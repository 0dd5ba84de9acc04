"""Eltwise SUM without temporaries."""

from __future__ import annotations

import numpy as np

from demitasse.backends import ops
from demitasse.backends.numpy.engine import Engine
from demitasse.backends.numpy.step import HostStep
from demitasse.backends.step import Declined, Operands

__all__ = ["SumStep"]


class SumStep(HostStep[ops.Eltwise]):
    """Weighted sum of blobs of one shape; may run in place of the first."""

    def __init__(self, engine: Engine, op: ops.Eltwise, at: Operands) -> None:
        super().__init__(engine, op, at)
        if op.operation != "SUM":
            message = f"{op.operation}; numpy's Step is for SUM"
            raise Declined(message)
        if any(blob is at.top[0] for blob in at.bottom[1:]):
            message = "in place of another bottom than the first"
            raise Declined(message)

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
        term = self.scratch("term", x.shape)
        np.multiply(x, weight, out=term)
        return term
