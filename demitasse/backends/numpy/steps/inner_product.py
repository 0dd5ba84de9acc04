"""InnerProduct: matrix products straight into the blobs."""

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.backends.numpy.step import NEEDS_BOTTOM, Engine, HostStep
from demitasse.backends.step import Operands, decline_in_place

FEW = 4  # rows are few when there are this many times more outputs


class InnerProductStep(HostStep[ops.InnerProduct]):
    """y = x W^T + b. Shapes: x (rows, k), weight (m, k) or (k, m), y (rows, m)."""

    def __init__(self, engine: Engine, op: ops.InnerProduct, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_in_place(self.at, NEEDS_BOTTOM)
        self.x_shape, self.y_shape = (op.rows, op.k), (op.rows, op.m)
        # a product of few rows is up to twice as fast with the weight on the left
        self.weight_first = not op.transpose and 1 < op.rows <= op.m // FEW

    def forward(self) -> None:
        x = self.at.bottom[0].read().reshape(self.x_shape)
        y = self.at.top[0].buffer().reshape(self.y_shape)
        if self.weight_first:
            y_t = self.scratch("product", (self.op.m, self.op.rows))
            np.matmul(self.at.params[0].read(), x.T, out=y_t)
            y[...] = y_t.T
        else:
            np.matmul(x, self._weight_km(), out=y)
        if self.op.bias:
            y += self.at.params[1].read()

    def backward(self) -> None:
        at = self.at
        dy = at.top[0].read_diff().reshape(self.y_shape)
        if at.param_propagate_down[0]:
            x = at.bottom[0].read().reshape(self.x_shape)
            left, right = (x, dy) if self.op.transpose else (dy, x)
            self.add_gradient(at.params[0], lambda out: np.matmul(left.T, right, out=out))
        if self.op.bias and at.param_propagate_down[1]:
            self.add_gradient(at.params[1], lambda out: np.add.reduce(dy, axis=0, out=out))
        if at.propagate_down[0]:
            dx = at.bottom[0].diff_buffer().reshape(self.x_shape)
            np.matmul(dy, self._weight_km().T, out=dx)

    def _weight_km(self) -> Array:
        weight = self.at.params[0].read()
        return weight if self.op.transpose else weight.T
