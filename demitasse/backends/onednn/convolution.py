"""Convolution, and Deconvolution as the gradient of one."""

from __future__ import annotations

import math
from typing import Any

from demitasse.backends import ops
from demitasse.backends.base import Operands, Step
from demitasse.backends.onednn.backend import OnednnBackend
from demitasse.backends.onednn.constants import Algorithm, Arg, Pass, Query
from demitasse.backends.onednn.engine import Description
from demitasse.backends.onednn.layout import Layout, any_layout, dims
from demitasse.backends.onednn.ports import Call, Gradient, Reader, Writer

__all__ = ["ConvStep"]

MOST_AXES = 3


class ConvStep(Step):
    """One bottom, one top; each primitive in the layouts that it likes best."""

    def __init__(self, backend: OnednnBackend, op: ops.Conv, at: Operands) -> None:
        self.backend, self.engine, self.op = backend, backend.engine, op
        self.x, self.y = image_shape(op.bottom, op.axis), image_shape(op.top, op.axis)
        self.window = [
            dims(op.stride),
            dims(tuple(d - 1 for d in op.dilation)),
            dims(op.pad),
            dims(op.pad),
        ]
        m, c, g = self.y[1], self.x[1], op.group
        shape = (m // g, c // g, *op.kernel)
        self.w = shape if g == 1 else (g, *shape)
        self.at: Any = at
        self.calls: list[Call] = []
        self.forward_call: Call | None = None
        self.forward_description: Description | None = None

    def any(self, shape: tuple[int, ...]) -> int:
        """Return a descriptor that leaves the layout of ``shape`` to the primitive."""
        return any_layout(self.engine.library, shape)

    def prepare(self) -> bool:
        """Make the forward primitive; False where there is no good one."""
        at, engine, bias = self.at, self.engine, self.bias
        found = engine.describe(
            "dnnl_convolution_forward",
            engine.handle,
            Pass.TRAINING if at.backward else Pass.INFERENCE,
            Algorithm.CONVOLUTION,
            self.any(self.x),
            self.any(self.w),
            bias.handle if bias else None,
            self.any(self.y),
            *self.window,
            engine.attributes,
        )
        if found is None:
            return False
        x, w, y = found.layout(Query.SRC), found.layout(Query.WEIGHTS), found.layout(Query.DST)
        if x is None or w is None or y is None:
            return False
        ports = [
            Reader(Arg.SRC, at.bottom[0].data_memory, x),
            Reader(Arg.WEIGHTS, at.params[0].data_memory, w),
        ]
        if bias:
            ports.append(Reader(Arg.BIAS, at.params[1].data_memory, bias))
        top = at.top[0].data_memory
        self.forward_call = Call(engine, found, [*ports, Writer(Arg.DST, top, y)])
        self.forward_description = found
        self.backend.promise(top, y)
        return True

    @property
    def bias(self) -> Layout | None:
        """Layout of the bias, or None without one."""
        return self.engine.plain((self.y[1],)) if self.op.bias else None

    def forward(self) -> None:
        assert self.forward_call is not None
        self.forward_call()

    def lower_backward(self, operands: Operands) -> bool:
        self.at = operands
        self.calls = []
        if not operands.backward:
            return True
        if any(operands.param_propagate_down) and not self._lower_weights():
            return False
        return not operands.propagate_down[0] or self._lower_data()

    def backward(self) -> None:
        for call in self.calls:
            call()

    def _lower_weights(self) -> bool:
        at, engine = self.at, self.engine
        bias = self.bias if self.op.bias and at.param_propagate_down[1] else None
        assert self.forward_description is not None
        found = engine.describe(
            "dnnl_convolution_backward_weights",
            engine.handle,
            Algorithm.CONVOLUTION,
            self.any(self.x),
            self.any(self.w),
            bias.handle if bias else None,
            self.any(self.y),
            *self.window,
            self.forward_description.handle,
            engine.attributes,
        )
        if found is None:
            return False
        x, w = found.layout(Query.SRC), found.layout(Query.DIFF_WEIGHTS)
        dy = found.layout(Query.DIFF_DST)
        if x is None or w is None or dy is None:
            return False
        ports = [
            Reader(Arg.SRC, at.bottom[0].data_memory, x),
            Reader(Arg.DIFF_DST, at.top[0].diff_memory, dy),
            Gradient(Arg.DIFF_WEIGHTS, at.params[0].diff_memory, w),
        ]
        if bias:
            ports.append(Gradient(Arg.DIFF_BIAS, at.params[1].diff_memory, bias))
        self.calls.append(Call(engine, found, ports))
        return True

    def _lower_data(self) -> bool:
        at, engine = self.at, self.engine
        assert self.forward_description is not None
        found = engine.describe(
            "dnnl_convolution_backward_data",
            engine.handle,
            Algorithm.CONVOLUTION,
            self.any(self.x),
            self.any(self.w),
            self.any(self.y),
            *self.window,
            self.forward_description.handle,
            engine.attributes,
        )
        if found is None:
            return False
        dx, w = found.layout(Query.DIFF_SRC), found.layout(Query.WEIGHTS)
        dy = found.layout(Query.DIFF_DST)
        if dx is None or w is None or dy is None:
            return False
        bottom = at.bottom[0].diff_memory
        ports = [
            Reader(Arg.DIFF_DST, at.top[0].diff_memory, dy),
            Reader(Arg.WEIGHTS, at.params[0].data_memory, w),
            Writer(Arg.DIFF_SRC, bottom, dx),
        ]
        self.calls.append(Call(engine, found, ports))
        self.backend.promise(bottom, dx)
        return True


def image_shape(shape: ops.Shape, axis: int) -> ops.Shape:
    """Return (N, C, *spatial) of a blob whose channels are on ``axis``."""
    return (math.prod(shape[:axis]), *shape[axis:])


@OnednnBackend.lowers(ops.Conv)
def conv(backend: Any, op: ops.Conv, at: Operands) -> Step | None:
    """Convolution over one to three axes."""
    if not suits(op, at):
        return None
    step = ConvStep(backend, op, at)
    return step if step.prepare() else None


def suits(op: ops.Conv, at: Operands) -> bool:
    """Whether oneDNN has a primitive for this at all."""
    return (
        op.dtype == "float32"
        and 1 <= len(op.kernel) <= MOST_AXES
        and len(at.bottom) == 1
        and not at.in_place
        and 0 not in op.bottom
        and 0 not in op.top
    )
