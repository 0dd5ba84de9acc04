"""Elementwise functions, one kernel in each direction; in place where the layer is."""

from __future__ import annotations

from typing import Any

from demitasse.backends import ops
from demitasse.backends.base import Operands, Step
from demitasse.backends.cupy.backend import CupyBackend
from demitasse.backends.cupy.step import DTYPES, EngineStep

__all__ = ["ActivationStep"]

KERNELS = {
    # function: kernel, and whether its gradient is computed from x rather than from y
    "relu": ("relu", True),
    "sigmoid": ("sigmoid", False),
    "tanh": ("hyperbolic_tangent", False),
}


class ActivationStep(EngineStep):
    """y = f(x) of every element."""

    def __init__(self, backend: Any, op: ops.Activation, operands: Operands) -> None:
        super().__init__(backend, operands)
        name, self.from_bottom = KERNELS[op.function]
        numbers = tuple(float(p) for p in op.parameters)
        each, gradient = self.engine.each, f"{name}_gradient"
        self._forward = each("activation", name, op.dtype, op.count, *numbers)
        self._backward = each("activation", gradient, op.dtype, op.count, *numbers)

    def forward(self) -> None:
        bottom, top = self.operands.bottom[0], self.operands.top[0]
        x = bottom.read()
        self._forward(x, top.buffer())

    def backward(self) -> None:
        bottom, top = self.operands.bottom[0], self.operands.top[0]
        if self.operands.propagate_down[0]:
            known = bottom.read() if self.from_bottom else top.read()
            dy = top.read_diff()
            self._backward(known, dy, bottom.diff_buffer())


@CupyBackend.lowers(ops.Activation)
def lower(backend: Any, op: ops.Activation, operands: Operands) -> Step | None:
    """Lower the functions that have kernels."""
    if op.function not in KERNELS or op.dtype not in DTYPES:
        return None
    return ActivationStep(backend, op, operands)
