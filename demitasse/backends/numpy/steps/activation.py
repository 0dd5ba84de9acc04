"""ReLU without temporaries."""

from __future__ import annotations

import numpy as np

from demitasse.backends import ops
from demitasse.backends.base import Backend, Operands, Step
from demitasse.backends.numpy.backend import NumpyBackend
from demitasse.backends.numpy.scratch import scratch

__all__ = ["ReLUStep"]


class ReLUStep(Step):
    """y = max(x, 0), in place or not."""

    def __init__(self, op: ops.Activation, at: Operands) -> None:
        self.op, self.at = op, at

    def lower_backward(self, operands: Operands) -> bool:
        self.at = operands
        return True

    def forward(self) -> None:
        x = self.at.bottom[0].read()
        np.maximum(x, 0, out=self.at.top[0].buffer())

    def backward(self) -> None:
        if self.at.propagate_down[0]:
            # in place, the bottom holds y, which is positive exactly where x was
            x, dy = self.at.bottom[0].read(), self.at.top[0].read_diff()
            passed = scratch("mask", x.shape, "bool")
            np.greater(x, 0, out=passed)
            np.multiply(dy, passed, out=self.at.bottom[0].diff_buffer())


@NumpyBackend.lowers(ops.Activation)
def activation(backend: Backend, op: ops.Activation, at: Operands) -> Step | None:
    """ReLU with slope 0; everything else runs its portable code."""
    del backend
    plain = op.function == "relu" and not any(op.parameters)
    return ReLUStep(op, at) if plain else None
