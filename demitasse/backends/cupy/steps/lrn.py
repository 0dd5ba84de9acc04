"""Local response normalisation across channels."""

from __future__ import annotations

import math
from typing import Any

from demitasse.backends import ops
from demitasse.backends.base import Operands, Step
from demitasse.backends.cupy.backend import CupyBackend
from demitasse.backends.cupy.step import DTYPES, EngineStep

__all__ = ["LRNStep"]


class LRNStep(EngineStep):
    """y = x * scale^-beta, where scale looks at the neighbouring channels.

    Shapes: bottom (N, C, H, W) -> top the same.
    """

    def __init__(self, backend: Any, op: ops.LRN, operands: Operands) -> None:
        super().__init__(backend, operands)
        self.shape = op.bottom
        size = (op.dtype, math.prod(op.bottom), op.bottom[1], math.prod(op.bottom[2:]), op.size)
        alpha, beta = op.alpha / op.size, float(op.beta)
        numbers = (alpha, beta, float(op.k), int(operands.backward))
        self._forward = self.engine.each("lrn", "lrn_across", *size, *numbers)
        self._backward = self.engine.each(
            "lrn", "lrn_across_gradient", *size, beta, 2 * alpha * beta
        )

    def forward(self) -> None:
        at = self.operands
        x = at.bottom[0].read()
        y = at.top[0].buffer()
        # without a backward pass nobody asks for the scale, and the kernel does not write it
        scale = at.saved("scale", self.shape).buffer() if at.backward else y
        self._forward(x, scale, y)

    def backward(self) -> None:
        at = self.operands
        if at.propagate_down[0]:
            x, y, dy = at.bottom[0].read(), at.top[0].read(), at.top[0].read_diff()
            scale = at.saved("scale", self.shape).read()
            self._backward(x, y, scale, dy, at.bottom[0].diff_buffer())


@CupyBackend.lowers(ops.LRN)
def lower(backend: Any, op: ops.LRN, operands: Operands) -> Step | None:
    """Lower normalisation across channels; within a channel the layer's own code runs."""
    if op.region != "ACROSS_CHANNELS" or op.dtype not in DTYPES or operands.in_place:
        return None
    return LRNStep(backend, op, operands)
