"""Split: the gradients of the readers summed, two arrays at a time."""

from __future__ import annotations

import math

from demitasse.backends import ops
from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.cupy.step import GpuStep
from demitasse.backends.step import Declined, Operands, share

__all__ = ["SplitStep"]


class SplitStep(GpuStep[ops.Split]):
    """The tops share the bottom's data; its gradient is the sum of theirs.

    Shapes: bottom any -> tops the same.
    """

    def __init__(self, engine: Engine, op: ops.Split, at: Operands) -> None:
        super().__init__(engine, op, at)
        if op.tops < 2:
            message = "one reader, for which nothing is summed"
            raise Declined(message)
        one = ("elementwise", "weighted_sum", op.dtype, math.prod(op.shape), 1.0, 1.0)
        self._add = engine.packs(*one)

    @property
    def code(self) -> str:
        return "shared"

    @property
    def backward_code(self) -> str:
        return "kernel"

    def forward(self) -> None:
        share(self.at)

    def backward(self) -> None:
        at = self.at
        if at.propagate_down[0]:
            total, *others = [blob.read_diff() for blob in at.top]
            dx = at.bottom[0].diff_buffer()
            for other in others:
                self._add(total, other, dx)
                total = dx
