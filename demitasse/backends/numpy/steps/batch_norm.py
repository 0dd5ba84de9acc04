"""BatchNorm by the stored statistics, without temporaries."""

from __future__ import annotations

import math

import numpy as np

from demitasse.backends import ops
from demitasse.backends.numpy.engine import Engine
from demitasse.backends.numpy.step import HostStep
from demitasse.backends.step import Declined, Operands

__all__ = ["BatchNormStep"]


class BatchNormStep(HostStep[ops.BatchNorm]):
    """y = (x - mean) / sqrt(variance + eps), in place or not.

    Shapes: x and y (N, C, inner); parameters (C,), (C,), (1,).
    """

    def __init__(self, engine: Engine, op: ops.BatchNorm, at: Operands) -> None:
        super().__init__(engine, op, at)
        if not op.use_global_stats:
            message = "statistics of the batch; numpy's Step takes stored ones"
            raise Declined(message)
        if 0 in op.bottom:
            message = "an empty bottom"
            raise Declined(message)
        n, self.channels, *rest = op.bottom
        self.shape = (n, self.channels, math.prod(rest))

    def forward(self) -> None:
        x, y = self.at.bottom[0].read().reshape(self.shape), self.at.top[0].buffer()
        y = y.reshape(self.shape)
        mean, _, factor = (blob.read() for blob in self.at.params)
        share = 1 / factor if factor[0] else factor
        np.subtract(x, (mean * share).reshape(1, -1, 1), out=y)
        y *= self._inverse(share)

    def backward(self) -> None:
        if self.at.propagate_down[0]:
            factor = self.at.params[2].read()
            dy = self.at.top[0].read_diff().reshape(self.shape)
            dx = self.at.bottom[0].diff_buffer().reshape(self.shape)
            np.multiply(dy, self._inverse(1 / factor if factor[0] else factor), out=dx)

    def _inverse(self, share: np.ndarray) -> np.ndarray:
        """Return 1 / deviation. Shape: (1, C, 1)."""
        variance = self.at.params[1].read() * share + self.op.eps
        inverse: np.ndarray = (1 / np.sqrt(variance)).astype(self.op.dtype)
        return inverse.reshape(1, -1, 1)
