"""InnerProduct: matrix products straight into the blobs."""

from __future__ import annotations

import numpy as np

from demitasse.backends import ops
from demitasse.backends.base import Backend, Operands, Step
from demitasse.backends.numpy.backend import NumpyBackend
from demitasse.backends.numpy.gradients import add_gradient
from demitasse.backends.numpy.scratch import scratch

__all__ = ["InnerProductStep"]

FEW = 4
"""Rows are few when there are this many times more outputs."""


class InnerProductStep(Step):
    """y = x W^T + b. Shapes: x (rows, k), weight (m, k) or (k, m), y (rows, m)."""

    def __init__(self, op: ops.InnerProduct, at: Operands) -> None:
        self.op, self.at = op, at
        self.x_shape, self.y_shape = (op.rows, op.k), (op.rows, op.m)
        # a product of few rows is up to twice as fast with the weight on the left
        self.weight_first = not op.transpose and 1 < op.rows <= op.m // FEW

    def lower_backward(self, operands: Operands) -> bool:
        self.at = operands
        return True

    def forward(self) -> None:
        x = self.at.bottom[0].read().reshape(self.x_shape)
        y = self.at.top[0].buffer().reshape(self.y_shape)
        if self.weight_first:
            y_t = scratch("product", (self.op.m, self.op.rows), self.op.dtype)
            np.matmul(self.at.params[0].read(), x.T, out=y_t)
            y[...] = y_t.T
        else:
            np.matmul(x, self._weight_km(), out=y)
        if self.op.bias:
            y += self.at.params[1].read()

    def backward(self) -> None:
        at, dtype = self.at, self.op.dtype
        dy = at.top[0].read_diff().reshape(self.y_shape)
        if at.param_propagate_down[0]:
            x = at.bottom[0].read().reshape(self.x_shape)
            left, right = (x, dy) if self.op.transpose else (dy, x)
            add_gradient(at.params[0], dtype, lambda out: np.matmul(left.T, right, out=out))
        if self.op.bias and at.param_propagate_down[1]:
            add_gradient(at.params[1], dtype, lambda out: np.add.reduce(dy, axis=0, out=out))
        if at.propagate_down[0]:
            dx = at.bottom[0].diff_buffer().reshape(self.x_shape)
            np.matmul(dy, self._weight_km().T, out=dx)

    def _weight_km(self) -> np.ndarray:
        weight: np.ndarray = self.at.params[0].read()
        return weight if self.op.transpose else weight.T


@NumpyBackend.lowers(ops.InnerProduct)
def inner_product(backend: Backend, op: ops.InnerProduct, at: Operands) -> Step | None:
    """Matrix products with the outputs given."""
    del backend
    return None if at.in_place else InnerProductStep(op, at)
