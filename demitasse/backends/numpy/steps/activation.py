"""Activation functions of every element, without temporaries."""

from __future__ import annotations

import numpy as np

from demitasse.backends import ops
from demitasse.backends.numpy.engine import Engine
from demitasse.backends.numpy.step import HostStep
from demitasse.backends.step import Declined, Operands

__all__ = ["FUNCTIONS", "activation"]


class ReLUStep(HostStep[ops.Activation]):
    """y = max(x, 0), in place or not."""

    def __init__(self, engine: Engine, op: ops.Activation, at: Operands) -> None:
        super().__init__(engine, op, at)
        if any(op.parameters):
            message = "a slope below 0; numpy's Step is for ReLU without one"
            raise Declined(message)

    def forward(self) -> None:
        x = self.at.bottom[0].read()
        np.maximum(x, 0, out=self.at.top[0].buffer())

    def backward(self) -> None:
        if self.at.propagate_down[0]:
            # in place, the bottom holds y, which is positive exactly where x was
            x, dy = self.at.bottom[0].read(), self.at.top[0].read_diff()
            passed = self.scratch("mask", x.shape, "bool")
            np.greater(x, 0, out=passed)
            np.multiply(dy, passed, out=self.at.bottom[0].diff_buffer())


FUNCTIONS: dict[str, type[HostStep[ops.Activation]]] = {"relu": ReLUStep}


def activation(engine: Engine, op: ops.Activation, at: Operands) -> HostStep[ops.Activation]:
    """Return the Step of a function.

    Raises:
        Declined: There is none.
    """
    if op.function not in FUNCTIONS:
        message = f"{op.function}; numpy has Steps for {', '.join(FUNCTIONS)}"
        raise Declined(message)
    return FUNCTIONS[op.function](engine, op, at)
