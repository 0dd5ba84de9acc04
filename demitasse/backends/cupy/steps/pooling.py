"""Pooling over height and width."""

from __future__ import annotations

import math
from typing import Any

from demitasse.backends import ops
from demitasse.backends.base import Operands, Step
from demitasse.backends.cupy.backend import CupyBackend
from demitasse.backends.cupy.step import DTYPES, EngineStep

__all__ = ["AveragePoolStep", "MaxPoolStep"]


def _geometry(op: ops.Pool) -> tuple[int, ...]:
    """Return the numbers that every kernel takes, behind the number of elements."""
    return (*op.bottom[2:], *op.kernel, *op.stride, *op.pad, *op.top[2:])


class MaxPoolStep(EngineStep):
    """The largest value of each window; keeps where it was.

    Shapes: bottom (N, C, H, W) -> top (N, C, *places), and the same for the second top, which
    gets the place of each value in its plane.
    """

    def __init__(self, backend: Any, op: ops.Pool, operands: Operands) -> None:
        super().__init__(backend, operands)
        self.op, numbers = op, _geometry(op)
        small, large = math.prod(op.top), math.prod(op.bottom)
        flags = (int(operands.backward), int(op.tops > 1))
        self._forward = self.engine.each(
            "pool", "max_pool", op.dtype, small, *numbers, *flags, reach=large
        )
        self._backward = self.engine.each(
            "pool", "max_pool_gradient", op.dtype, large, *numbers, reach=small
        )

    def forward(self) -> None:
        at = self.operands
        x = at.bottom[0].read()
        y = at.top[0].buffer()
        # what a flag says is not wanted is not written
        winners = at.saved("winners", self.op.top, "int32").buffer() if at.backward else y
        mask = at.top[1].buffer() if self.op.tops > 1 else y
        self._forward(x, y, winners, mask)

    def backward(self) -> None:
        at = self.operands
        if at.propagate_down[0]:
            winners = at.saved("winners", self.op.top, "int32").read()
            dy = at.top[0].read_diff()
            self._backward(winners, dy, at.bottom[0].diff_buffer())


class AveragePoolStep(EngineStep):
    """The mean of each window, padding counted as Caffe counts it.

    Shapes: bottom (N, C, H, W) -> top (N, C, *places).
    """

    def __init__(self, backend: Any, op: ops.Pool, operands: Operands) -> None:
        super().__init__(backend, operands)
        numbers, small, large = _geometry(op), math.prod(op.top), math.prod(op.bottom)
        self._forward = self.engine.each(
            "pool", "average_pool", op.dtype, small, *numbers, reach=large
        )
        self._backward = self.engine.each(
            "pool", "average_pool_gradient", op.dtype, large, *numbers, reach=small
        )

    def forward(self) -> None:
        x = self.operands.bottom[0].read()
        self._forward(x, self.operands.top[0].buffer())

    def backward(self) -> None:
        at = self.operands
        if at.propagate_down[0]:
            dy = at.top[0].read_diff()
            self._backward(dy, at.bottom[0].diff_buffer())


@CupyBackend.lowers(ops.Pool)
def lower(backend: Any, op: ops.Pool, operands: Operands) -> Step | None:
    """Lower MAX and AVE over two axes; the layer's own code runs for the rest."""
    if len(op.bottom) != 4 or op.dtype not in DTYPES or operands.in_place:
        return None
    if op.method == "MAX":
        return MaxPoolStep(backend, op, operands)
    if op.method == "AVE" and op.tops == 1:
        return AveragePoolStep(backend, op, operands)
    return None
