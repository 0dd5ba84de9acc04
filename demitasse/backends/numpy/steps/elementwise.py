"""Activations, Scale and BatchNorm."""

import math

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.backends.numpy.step import Engine, HostStep
from demitasse.backends.step import Operand, Operands, decline_if


class ReLUStep(HostStep[ops.Activation]):
    """y = max(x, 0), in place or not. Minus infinity gives NaN, as multiplied with a slope of 0."""

    def __init__(self, engine: Engine, op: ops.Activation, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_if(any(op.parameters), "a slope below 0; numpy's Step is for ReLU without one")

    def forward(self) -> None:
        x = self.at.bottom[0].read()
        y = self.at.top[0].buffer()
        if np.minimum.reduce(x, axis=None, initial=np.inf) > -np.inf:
            np.maximum(x, 0, out=y)
        else:
            y[...] = np.maximum(x, 0) + 0 * np.minimum(x, 0)

    def backward(self) -> None:
        if self.at.propagate_down[0]:
            # in place, the bottom holds y, which is positive exactly where x was
            x, dy = self.at.bottom[0].read(), self.at.top[0].read_diff()
            passed = self.scratch("mask", x.shape, "bool")
            np.greater(x, 0, out=passed)
            np.multiply(dy, passed, out=self.at.bottom[0].diff_buffer())


FUNCTIONS: dict[str, type[HostStep[ops.Activation]]] = {"relu": ReLUStep}


def activation(engine: Engine, op: ops.Activation, at: Operands) -> HostStep[ops.Activation]:
    """Return the Step of a function."""
    why = f"{op.function}; numpy has Steps for {', '.join(FUNCTIONS)}"
    decline_if(op.function not in FUNCTIONS, why)
    return FUNCTIONS[op.function](engine, op, at)


class ScaleStep(HostStep[ops.Scale]):
    """y = x s (+ b), in place or not; s is a parameter or the second bottom.

    Shapes: x and y (outer, dim, inner), s and b (dim,).
    """

    def __init__(self, engine: Engine, op: ops.Scale, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_if(not math.prod((op.outer, op.dim, op.inner)), "an empty bottom")
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

    def _spread(self, blob: Operand) -> Array:
        return blob.read().reshape(1, self.op.dim, 1)


class BatchNormStep(HostStep[ops.BatchNorm]):
    """y = (x - mean) / sqrt(variance + eps), in place or not.

    Shapes: x and y (N, C, inner); parameters (C,), (C,), (1,).
    """

    def __init__(self, engine: Engine, op: ops.BatchNorm, at: Operands) -> None:
        super().__init__(engine, op, at)
        why = "statistics of the batch; numpy's Step takes stored ones"
        decline_if(not op.use_global_stats, why)
        decline_if(0 in op.bottom, "an empty bottom")
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

    def _inverse(self, share: np.ndarray) -> Array:
        """Return 1 / deviation. Shape: (1, C, 1)."""
        variance = self.at.params[1].read() * share + self.op.eps
        return (1 / np.sqrt(variance)).astype(self.op.dtype).reshape(1, -1, 1)
