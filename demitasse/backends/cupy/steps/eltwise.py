"""Eltwise SUM: one kernel for the first two bottoms, and one for each that follows."""

from __future__ import annotations

import math

from demitasse.backends import ops
from demitasse.backends.cupy.library.engine import Engine, Launch
from demitasse.backends.cupy.step import GpuStep
from demitasse.backends.step import Declined, Operands

__all__ = ["SumStep"]


class SumStep(GpuStep[ops.Eltwise]):
    """y = sum of coefficient * x, rectified where a ReLU follows; may run in place of the first x.

    Args:
        engine: Runs it.
        op: The sum.
        at: Its blobs; the top is that of the ReLU where there is one.
        slope: Of the ReLU below 0, or None where there is none.

    Shapes: bottoms all the same -> top the same.
    """

    narrow_params = ()

    def __init__(
        self, engine: Engine, op: ops.Eltwise, at: Operands, slope: float | None = None
    ) -> None:
        super().__init__(engine, op, at)
        if op.operation != "SUM":
            message = f"{op.operation}; there are kernels for SUM"
            raise Declined(message)
        if any(blob is at.top[0] for blob in at.bottom[1:]):
            message = "in place of another bottom than the first"
            raise Declined(message)
        count, factors = math.prod(op.shape), [float(c) for c in op.coefficients]

        def packs(name: str, *numbers: float) -> Launch:
            return engine.packs("elementwise", name, self.dtype, count, *numbers)

        pairs = [tuple(factors[:2]), *((1.0, factor) for factor in factors[2:])]
        self._sums = [packs("weighted_sum", *pair) for pair in pairs]
        self.slope = slope
        if slope is not None:
            self._sums[-1] = packs("rectified_sum", *pairs[-1], float(slope))
        self._gradients = [packs("scaled", factor) for factor in factors]

    @property
    def code(self) -> str:
        return super().code if self.slope is None else f"{super().code} + ReLU"

    @property
    def backward_code(self) -> str:
        return super().code

    def forward(self) -> None:
        total, *others = [blob.read() for blob in self.at.bottom]
        y = self.at.top[0].buffer()
        for x, add in zip(others, self._sums, strict=True):
            add(total, x, y)
            total = y

    def backward(self) -> None:
        at = self.at
        dy = at.top[0].read_diff()
        # backwards, since in place the first bottom's gradient is the top's
        for index in reversed(range(len(at.bottom))):
            if at.propagate_down[index]:
                self._gradients[index](dy, at.bottom[index].diff_buffer())
