"""Scale without temporaries."""

from __future__ import annotations

import math

import numpy as np

from demitasse.backends import ops
from demitasse.backends.numpy.engine import Engine
from demitasse.backends.numpy.step import HostStep
from demitasse.backends.step import Declined, Operand, Operands

__all__ = ["ScaleStep"]


class ScaleStep(HostStep[ops.Scale]):
    """y = x s (+ b), in place or not; s is a parameter or the second bottom.

    Shapes: x and y (outer, dim, inner), s and b (dim,).
    """

    def __init__(self, engine: Engine, op: ops.Scale, at: Operands) -> None:
        super().__init__(engine, op, at)
        if not math.prod((op.outer, op.dim, op.inner)):
            message = "an empty bottom"
            raise Declined(message)
        self.learned = len(at.bottom) == 1
        self.scale = at.params[0] if self.learned else at.bottom[1]
        self.shape = (op.outer, op.dim, op.inner)

    def forward(self) -> None:
        at = self.at
        x = at.bottom[0].read().reshape(self.shape)
        if at.in_place and at.backward:
            at.saved("x", at.bottom[0].shape).buffer().reshape(self.shape)[...] = x
        y = at.top[0].buffer().reshape(self.shape)
        np.multiply(x, self._spread(self.scale), out=y)
        if self.op.bias:
            y += self._spread(at.params[-1])

    def backward(self) -> None:
        at, dtype = self.at, self.op.dtype
        dy = at.top[0].read_diff().reshape(self.shape)
        if self.op.bias and at.param_propagate_down[-1]:
            self.add_gradient(at.params[-1], lambda out: self._sum(out, "odi->d", dy))
        if at.param_propagate_down[0] if self.learned else at.propagate_down[1]:
            bottom = at.bottom[0]
            kept = at.saved("x", bottom.shape, dtype).read() if at.in_place else bottom.read()
            x = kept.reshape(self.shape)
            if self.learned:
                self.add_gradient(self.scale, lambda out: self._sum(out, "odi,odi->d", dy, x))
            else:
                self._sum(self.scale.diff_buffer(), "odi,odi->d", dy, x)
        if at.propagate_down[0]:
            dx = at.bottom[0].diff_buffer().reshape(self.shape)
            np.multiply(dy, self._spread(self.scale), out=dx)

    def _sum(self, out: np.ndarray, subscripts: str, *terms: np.ndarray) -> None:
        np.einsum(subscripts, *terms, out=out.reshape(self.op.dim))

    def _spread(self, blob: Operand) -> np.ndarray:
        values: np.ndarray = blob.read().reshape(1, self.op.dim, 1)
        return values
