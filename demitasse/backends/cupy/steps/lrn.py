"""Local response normalisation across channels."""

from __future__ import annotations

import math

from demitasse.backends import ops
from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.cupy.step import NEEDS_BOTTOM, GpuStep
from demitasse.backends.step import Declined, Operands, decline_in_place

__all__ = ["LRNStep"]


class LRNStep(GpuStep[ops.LRN]):
    """y = x * scale^-beta; scale = k + alpha / size * sum of x^2 over ``size`` channels around.

    Shapes: bottom (N, C, H, W) -> top the same.
    """

    def __init__(self, engine: Engine, op: ops.LRN, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_in_place(self.at, NEEDS_BOTTOM)
        if op.region != "ACROSS_CHANNELS":
            message = f"{op.region}; there are kernels for ACROSS_CHANNELS"
            raise Declined(message)
        size = (op.dtype, math.prod(op.bottom), op.bottom[1], math.prod(op.bottom[2:]), op.size)
        alpha, beta = op.alpha / op.size, float(op.beta)
        numbers = (alpha, beta, float(op.k), int(at.backward))
        self._forward = engine.each("lrn", "lrn_across", *size, *numbers)
        self._backward = engine.each("lrn", "lrn_across_gradient", *size, beta, 2 * alpha * beta)

    def forward(self) -> None:
        at = self.at
        x = at.bottom[0].read()
        y = at.top[0].buffer()
        # only backward needs the scale; without it the kernel does not write there
        scale = at.saved("scale", self.op.bottom).buffer() if at.backward else y
        self._forward(x, scale, y)

    def backward(self) -> None:
        at = self.at
        if at.propagate_down[0]:
            x, y, dy = at.bottom[0].read(), at.top[0].read(), at.top[0].read_diff()
            scale = at.saved("scale", self.op.bottom).read()
            self._backward(x, y, scale, dy, at.bottom[0].diff_buffer())
