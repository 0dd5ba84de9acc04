"""Activation functions of every element, one kernel in each direction; in place or not."""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.cupy.step import GpuStep
from demitasse.backends.step import Declined, Operands

__all__ = ["FUNCTIONS", "ActivationStep"]

FUNCTIONS = {
    # function: source and kernel, and what its gradient is computed from
    "abs": ("function", "absolute", "bottom"),
    "bnll": ("function", "bnll", "input"),
    "clip": ("function", "clip", "input"),
    "elu": ("function", "elu", "result"),
    "exp": ("function", "exponential", "result"),
    "gelu": ("activation", "gelu", "input"),
    "log": ("function", "logarithm", "input"),
    "power": ("function", "power", "input"),
    # its input, or in place its result: both are above 0 together
    "relu": ("activation", "relu", "bottom"),
    "sigmoid": ("activation", "sigmoid", "result"),
    "swish": ("function", "swish", "input"),
    "tanh": ("activation", "hyperbolic_tangent", "result"),
}


class ActivationStep(GpuStep[ops.Activation]):
    """y = f(x) of every element.

    Shapes: bottom any -> top the same.
    """

    narrow_params = ()

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
        if op.function == "elu" and op.parameters[0] < 0 and at.backward:
            message = (
                f"alpha {op.parameters[0]:g}; the gradient is known from the result for 0 and more"
            )
            raise Declined(message)
        family, name, self.gradient_from = FUNCTIONS[op.function]
        self.keeps_input = self.gradient_from == "input" and at.loses_input
        numbers = tuple(float(p) for p in op.parameters)
        packs, gradient = engine.packs, f"{name}_gradient"
        self._forward = packs(family, name, self.dtype, op.count, *numbers)
        self._backward = packs(family, gradient, op.dtype, op.count, *numbers)
        self._keep = packs("elementwise", "scaled", op.dtype, op.count, 1.0)

    def forward(self) -> None:
        x = self.at.bottom[0].read()
        if self.keeps_input:
            self._keep(x, self.at.saved("input", self.at.bottom[0].shape).buffer())
        self._forward(x, self.at.top[0].buffer())

    def backward(self) -> None:
        bottom, top = self.at.bottom[0], self.at.top[0]
        if self.at.propagate_down[0]:
            self._backward(self._known(), top.read_diff(), bottom.diff_buffer())

    def _known(self) -> Array:
        """Return what the gradient is computed from."""
        if self.keeps_input:
            return self.at.saved("input", self.at.bottom[0].shape).read()
        return (self.at.top if self.gradient_from == "result" else self.at.bottom)[0].read()
