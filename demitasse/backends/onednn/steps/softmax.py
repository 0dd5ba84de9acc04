"""Softmax."""

from __future__ import annotations

from typing import Any

import numpy as np

from demitasse.backends import ops
from demitasse.backends.base import Operands, Step
from demitasse.backends.onednn.backend import OnednnBackend
from demitasse.backends.onednn.library.constants import Algorithm, Arg, Pass
from demitasse.backends.onednn.library.engine import Description, Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.ports import Call, Reader, Writer
from demitasse.backends.onednn.step import PreparedStep

__all__ = ["SoftmaxStep", "describe_softmax", "spoil_lost"]


def spoil_lost(x: np.ndarray, top: Any, axis: int) -> None:
    """Write NaN into ``top`` wherever a value that is not a number, or infinite, leads to it.

    oneDNN's exponential makes a number of everything, which would hide that a net has diverged.

    Args:
        x: What the softmax is of.
        top: The blob that holds it, of the same shape.
        axis: Along which it goes.
    """
    lost = ~(np.maximum.reduce(x, axis=axis, keepdims=True) < np.inf)
    if lost.any():
        y = top.data_memory.mutable_cpu_data()[: top.count].reshape(x.shape)
        y[...] = np.where(lost, np.float32(np.nan), y)


def describe_softmax(
    engine: Engine, shape: tuple[int, ...], axis: int, *, training: bool
) -> tuple[Description, Layout] | None:
    """Return the forward primitive and the layout of both its sides; None where none is good.

    C order, as the layers around a classifier are; or the axis innermost, where the library has no
    good code to go along it in strides.
    """
    last = engine.innermost_layout(shape, axis)
    for layout in (engine.plain(shape), last):
        if layout is None:
            continue
        found = engine.describe(
            "dnnl_softmax_forward",
            engine.handle,
            Pass.TRAINING if training else Pass.INFERENCE,
            Algorithm.SOFTMAX,
            layout.handle,
            layout.handle,
            axis,
            engine.attributes,
        )
        if found:
            return found, layout
    return None


class SoftmaxStep(PreparedStep):
    """Softmax along one axis."""

    def __init__(self, backend: OnednnBackend, op: ops.Softmax, at: Operands) -> None:
        super().__init__(backend, at)
        self.op = op

    def prepare(self) -> bool:
        """Make the forward primitive; False where there is no good one."""
        at, op = self.at, self.op
        found = describe_softmax(self.engine, op.bottom, op.axis, training=at.backward)
        if not found:
            return False
        self.hint, self.layout = found
        ports = [
            Reader(Arg.SRC, at.bottom[0], self.layout),
            Writer(Arg.DST, at.top[0], self.layout),
        ]
        self.forward_calls = [Call(self.engine, self.hint, ports)]
        return True

    def forward(self) -> None:
        super().forward()
        spoil_lost(self.at.bottom[0].read(), self.at.top[0], self.op.axis)

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
        if found:
            ports = [
                Reader(Arg.DST, at.top[0], layout),
                Reader(Arg.DIFF_DST, at.top[0], layout, diff=True),
                Writer(Arg.DIFF_SRC, at.bottom[0], layout, diff=True),
            ]
            self.backward_calls = [Call(self.engine, found, ports)]
        return True

    def backward(self) -> None:
        if self.backward_calls or not self.at.propagate_down[0]:
            super().backward()
            return
        y, dy = self.at.top[0].read(), self.at.top[0].read_diff()
        dx = self.at.bottom[0].diff_buffer()
        np.multiply(dy, y, out=dx)
        dx -= y * np.add.reduce(dx, axis=self.op.axis, keepdims=True)


@OnednnBackend.lowers(ops.Softmax)
def softmax(backend: Any, op: ops.Softmax, at: Operands) -> Step | None:
    """Along any axis."""
    if op.dtype != "float32" or at.in_place or 0 in op.bottom:
        return None
    step = SoftmaxStep(backend, op, at)
    return step if step.prepare() else None
