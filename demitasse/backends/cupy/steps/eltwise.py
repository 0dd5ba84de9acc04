"""Eltwise SUM: one kernel for the first two bottoms, and one for each that follows."""

from __future__ import annotations

import math

from demitasse.backends import ops
from demitasse.backends.cupy.library.engine import Engine, Launch
from demitasse.backends.cupy.step import GpuStep
from demitasse.backends.step import Declined, Operands

__all__ = ["SumStep"]


class SumStep(GpuStep[ops.Eltwise]):
    """y = sum of coefficient * x; may run in place of the first bottom.

    Shapes: bottoms all the same -> top the same.
    """

    def __init__(self, engine: Engine, op: ops.Eltwise, at: Operands) -> None:
        super().__init__(engine, op, at)
        if op.operation != "SUM":
            message = f"{op.operation}; there are kernels for SUM"
            raise Declined(message)
        if any(blob is at.top[0] for blob in at.bottom[1:]):
            message = "in place of another bottom than the first"
            raise Declined(message)
        count, factors = math.prod(op.shape), [float(c) for c in op.coefficients]

        def packs(name: str, *numbers: float) -> Launch:
            return engine.packs("elementwise", name, op.dtype, count, *numbers)

        self._first = packs("weighted_sum", *factors[:2])
        self._more = [packs("weighted_sum", 1.0, factor) for factor in factors[2:]]
        self._gradients = [packs("scaled", factor) for factor in factors]

    def forward(self) -> None:
        a, b, *more = [blob.read() for blob in self.at.bottom]
        y = self.at.top[0].buffer()
        self._first(a, b, y)
        for x, add in zip(more, self._more, strict=True):
            add(y, x, y)

    def backward(self) -> None:
        at = self.at
        dy = at.top[0].read_diff()
        # backwards, since in place the first bottom's gradient is the top's
        for index in reversed(range(len(at.bottom))):
            if at.propagate_down[index]:
                self._gradients[index](dy, at.bottom[index].diff_buffer())
