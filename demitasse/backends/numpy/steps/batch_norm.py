"""BatchNorm by the stored statistics, without temporaries."""

from __future__ import annotations

import math

import numpy as np

from demitasse.backends import ops
from demitasse.backends.base import Backend, Operands, Step
from demitasse.backends.numpy.backend import NumpyBackend

__all__ = ["BatchNormStep"]


class BatchNormStep(Step):
    """y = (x - mean) / sqrt(variance + eps), in place or not.

    Shapes: x and y (N, C, inner); parameters (C,), (C,), (1,).
    """

    def __init__(self, op: ops.BatchNorm, at: Operands) -> None:
        self.op, self.at = op, at
        n, self.channels, *rest = op.bottom
        self.shape = (n, self.channels, math.prod(rest))

    def lower_backward(self, operands: Operands) -> bool:
        self.at = operands
        return True

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


@NumpyBackend.lowers(ops.BatchNorm)
def batch_norm(backend: Backend, op: ops.BatchNorm, at: Operands) -> Step | None:
    """With the batch's own statistics, the portable code runs."""
    del backend
    return BatchNormStep(op, at) if op.use_global_stats and 0 not in op.bottom else None
