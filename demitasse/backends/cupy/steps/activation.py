"""Activation functions of every element, one kernel in each direction; in place or not."""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.cupy.step import GpuStep
from demitasse.backends.step import Declined, Operands

__all__ = ["FUNCTIONS", "ActivationStep"]

FUNCTIONS = {
    # function: kernel, and whether its gradient is computed from x rather than from y
    "relu": ("relu", True),
    "sigmoid": ("sigmoid", False),
    "tanh": ("hyperbolic_tangent", False),
}


class ActivationStep(GpuStep[ops.Activation]):
    """y = f(x) of every element.

    Shapes: bottom any -> top the same.
    """

    def __init__(self, engine: Engine, op: ops.Activation, at: Operands) -> None:
        super().__init__(engine, op, at)
        if op.function not in FUNCTIONS:
            message = f"{op.function}; there are kernels for {', '.join(FUNCTIONS)}"
            raise Declined(message)
        if op.function == "relu" and op.parameters[0] < 0 and at.in_place and at.backward:
            message = (
                f"slope {op.parameters[0]:g} in place; the gradient is known from the result for 0 "
                "and more"
            )
            raise Declined(message)
        name, self.from_bottom = FUNCTIONS[op.function]
        numbers = tuple(float(p) for p in op.parameters)
        each, gradient = engine.each, f"{name}_gradient"
        self._forward = each("activation", name, op.dtype, op.count, *numbers)
        self._backward = each("activation", gradient, op.dtype, op.count, *numbers)

    def forward(self) -> None:
        x = self.at.bottom[0].read()
        self._forward(x, self.at.top[0].buffer())

    def backward(self) -> None:
        bottom, top = self.at.bottom[0], self.at.top[0]
        if self.at.propagate_down[0]:
            known = bottom.read() if self.from_bottom else top.read()
            dy = top.read_diff()
            self._backward(known, dy, bottom.diff_buffer())
