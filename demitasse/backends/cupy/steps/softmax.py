"""Softmax along any axis, one kernel in each direction."""

from __future__ import annotations

import math

from demitasse.backends import ops
from demitasse.backends.cupy.library.engine import Engine, Launch
from demitasse.backends.cupy.step import GpuStep
from demitasse.backends.step import Operands

__all__ = ["SoftmaxStep", "sizes", "softmax_kernel"]


def softmax_kernel(
    engine: Engine, op: ops.Softmax | ops.SoftmaxLoss, dtype: str, *, gradient: bool = False
) -> Launch:
    """Return the kernel for the softmax of ``op``, or for its gradient."""
    outer, classes, inner = sizes(op)
    ending = "_gradient" if gradient else ""
    if inner == 1:
        name = f"softmax_rows{ending}"
        return engine.rows("softmax", name, dtype, outer, classes, outer, classes)
    name, reach = f"softmax_places{ending}", outer * classes * inner
    return engine.each("softmax", name, dtype, outer * inner, classes, inner, reach=reach)


def sizes(op: ops.Softmax | ops.SoftmaxLoss) -> tuple[int, int, int]:
    """Return the number of elements before, on and after the axis."""
    axis = op.axis
    return math.prod(op.bottom[:axis]), op.bottom[axis], math.prod(op.bottom[axis + 1 :])


class SoftmaxStep(GpuStep[ops.Softmax]):
    """y = exp(x) / sum of exp(x) along one axis; in place or not.

    Shapes: bottom any -> top the same.
    """

    narrow_params = ()

    def __init__(self, engine: Engine, op: ops.Softmax, at: Operands) -> None:
        super().__init__(engine, op, at)
        self._forward = softmax_kernel(engine, op, self.dtype)
        self._backward = softmax_kernel(engine, op, op.dtype, gradient=True)

    def forward(self) -> None:
        x = self.at.bottom[0].read()
        self._forward(x, self.at.top[0].buffer())

    def backward(self) -> None:
        at = self.at
        if at.propagate_down[0]:
            y, dy = at.top[0].read(), at.top[0].read_diff()
            self._backward(y, dy, at.bottom[0].diff_buffer())
