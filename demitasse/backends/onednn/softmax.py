"""Softmax."""

from __future__ import annotations

from typing import Any

import numpy as np

from demitasse.backends import ops
from demitasse.backends.base import Operands, Step
from demitasse.backends.onednn.backend import OnednnBackend
from demitasse.backends.onednn.constants import Algorithm, Arg, Pass
from demitasse.backends.onednn.ports import Call, Reader, Writer
from demitasse.backends.onednn.step import PreparedStep

__all__ = ["SoftmaxStep", "spoil_lost"]


def spoil_lost(x: np.ndarray, y: np.ndarray, axis: int) -> None:
    """Write NaN into ``y`` wherever a value that is not a number, or infinite, leads to it.

    oneDNN's exponential makes a number of everything, which would hide that a net has diverged.

    Shapes: x and y the same.
    """
    lost = ~(np.maximum.reduce(x, axis=axis, keepdims=True) < np.inf)
    if lost.any():
        y[...] = np.where(lost, np.float32(np.nan), y)


class SoftmaxStep(PreparedStep):
    """In C order, as the layers around a classifier are."""

    def __init__(self, backend: OnednnBackend, op: ops.Softmax, at: Operands) -> None:
        super().__init__(backend, at)
        self.op, self.layout = op, self.engine.plain(op.bottom)

    def prepare(self) -> bool:
        """Make the forward primitive; False where there is no good one."""
        at, layout = self.at, self.layout
        found = self.describe(
            "softmax_forward",
            Pass.TRAINING if at.backward else Pass.INFERENCE,
            Algorithm.SOFTMAX,
            layout.handle,
            layout.handle,
            self.op.axis,
            self.engine.attributes,
        )
        if not found:
            return False
        self.hint = found
        ports = [
            Reader(Arg.SRC, at.bottom[0], layout),
            Writer(Arg.DST, at.top[0], layout),
        ]
        self.forward_calls = [Call(self.engine, found, ports)]
        return True

    def forward(self) -> None:
        super().forward()
        top = self.at.top[0].data_memory.cpu_data()[: self.at.top[0].count]
        spoil_lost(self.at.bottom[0].read(), top.reshape(self.op.bottom), self.op.axis)

    def prepare_backward(self) -> bool:
        at, layout = self.at, self.layout
        if not at.propagate_down[0]:
            return True
        found = self.describe(
            "softmax_backward",
            Algorithm.SOFTMAX,
            layout.handle,
            layout.handle,
            layout.handle,
            self.op.axis,
            self.hint.handle,
            self.engine.attributes,
        )
        if not found:
            return False
        ports = [
            Reader(Arg.DST, at.top[0], layout),
            Reader(Arg.DIFF_DST, at.top[0], layout, diff=True),
            Writer(Arg.DIFF_SRC, at.bottom[0], layout, diff=True),
        ]
        self.backward_calls = [Call(self.engine, found, ports)]
        return True


@OnednnBackend.lowers(ops.Softmax)
def softmax(backend: Any, op: ops.Softmax, at: Operands) -> Step | None:
    """Along any axis."""
    if op.dtype != "float32" or at.in_place or 0 in op.bottom:
        return None
    step = SoftmaxStep(backend, op, at)
    return step if step.prepare() else None
