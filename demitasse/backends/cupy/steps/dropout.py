"""Dropout: random words, mask and product in one kernel."""

from __future__ import annotations

import numpy as np

from demitasse.backends import ops
from demitasse.backends.cupy.library.cells import Cell
from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.cupy.step import GpuStep
from demitasse.backends.step import Declined, Operands

__all__ = ["DropoutStep"]


class DropoutStep(GpuStep[ops.Dropout]):
    """y = x * mask, dx = dy * mask; nothing, or a copy, where the mask would be 1. In place or not.

    The kernel reads the number of the pass on the device.

    Shapes: bottom any -> top the same.
    """

    narrow_params = ()

    def takes_narrow(self, op: ops.Dropout) -> bool:
        return not op.drops

    def __init__(self, engine: Engine, op: ops.Dropout, at: Operands) -> None:
        super().__init__(engine, op, at)
        packs = engine.packs
        self._scaled = packs("elementwise", "scaled", self.dtype, op.count, float(op.factor))
        self._times = packs("elementwise", "product", op.dtype, op.count)
        if op.drops:
            draw = at.draw()
            if draw.world_size > 1:
                message = "several ranks, each of which draws a part of one sequence"
                raise Declined(message)
            self._drop = engine.dropout(op.dtype, op.count, draw, op.threshold, op.factor)
            self._passes = Cell(engine, 1, "uint64")

    def forward(self) -> None:
        at, op = self.at, self.op
        x = at.bottom[0].read()
        if op.drops:
            mask = at.saved("mask", at.bottom[0].shape).buffer()
            self._drop(x, at.top[0].buffer(), mask, self._passes.holding(self._number))
        elif self._works:
            self._scaled(x, at.top[0].buffer())

    def backward(self) -> None:
        at, op = self.at, self.op
        if not at.propagate_down[0]:
            return
        dy = at.top[0].read_diff()
        if op.drops:
            mask = at.saved("mask", at.bottom[0].shape).read()
            self._times(dy, mask, at.bottom[0].diff_buffer())
        elif self._works:
            self._scaled(dy, at.bottom[0].diff_buffer())

    @property
    def _works(self) -> bool:
        """True if there is something to do where nothing is dropped."""
        return self.op.factor != 1 or not self.at.in_place

    def _number(self) -> np.ndarray:
        return np.array([self.at.draw().passes], np.uint64)
