"""Deconvolution: the gradient of the convolution that maps its top to its bottom.

Forward is that convolution's gradient of the data, and the gradient of the bottom is that
convolution itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from demitasse.backends import ops
from demitasse.backends.base import Operands, Step
from demitasse.backends.onednn.backend import OnednnBackend
from demitasse.backends.onednn.library.constants import Algorithm, Arg, Pass, Query
from demitasse.backends.onednn.library.engine import Description
from demitasse.backends.onednn.library.layout import dims
from demitasse.backends.onednn.ports import Call, Gradient, Reader, Writer
from demitasse.backends.onednn.step import PreparedStep
from demitasse.backends.onednn.steps.convolution import image_shape, suits

__all__ = ["DeconvStep"]


class DeconvStep(PreparedStep):
    """Bottom = maps, top = image, as the convolution sees them."""

    def __init__(self, backend: OnednnBackend, op: ops.Deconv, at: Operands) -> None:
        super().__init__(backend, at)
        self.op = op
        self.image, self.maps = image_shape(op.top, op.axis), image_shape(op.bottom, op.axis)
        pad = dims(op.pad)
        self.window = [dims(op.stride), dims(tuple(d - 1 for d in op.dilation)), pad, pad]
        c, m, g = self.image[1], self.maps[1], op.group
        shape = (m // g, c // g, *op.kernel)
        self.w = shape if g == 1 else (g, *shape)

    def prepare(self) -> bool:
        """Make the forward primitives; False where there are no good ones."""
        hint = self._convolution()
        found = hint and self.describe(
            "convolution_backward_data",
            Algorithm.CONVOLUTION,
            self.any(self.image),
            self.any(self.w),
            self.any(self.maps),
            *self.window,
            hint.handle,
            self.engine.attributes,
        )
        layouts = found and found.layouts(Query.DIFF_SRC, Query.WEIGHTS, Query.DIFF_DST)
        if not hint or not found or not layouts:
            return False
        y, w, x = layouts
        self.hint, at = hint, self.at
        ports = [
            Reader(Arg.DIFF_DST, at.bottom[0], x),
            Reader(Arg.WEIGHTS, at.params[0], w),
            Writer(Arg.DIFF_SRC, at.top[0], y),
        ]
        self.forward_calls = [Call(self.engine, found, ports)]
        self.backend.promise(at.top[0], y)
        return not self.op.bias or self._prepare_bias(y)

    def _convolution(self) -> Description | None:
        return self.describe(
            "convolution_forward",
            Pass.TRAINING,
            Algorithm.CONVOLUTION,
            self.any(self.image),
            self.any(self.w),
            None,
            self.any(self.maps),
            *self.window,
            self.engine.attributes,
        )

    def _prepare_bias(self, layout: Any) -> bool:
        """Add the bias in place, one value for each channel."""
        bias = self.engine.plain((1, self.image[1], *(1 for _ in self.op.kernel)))
        found = self.describe(
            "binary",
            Algorithm.ADD,
            layout.handle,
            bias.handle,
            layout.handle,
            self.engine.attributes,
        )
        if not found:
            return False
        top = self.at.top[0]
        ports = [
            Reader(Arg.SRC, top, layout),
            Reader(Arg.SECOND_SRC, self.at.params[1], bias),
            Writer(Arg.DST, top, layout),
        ]
        self.forward_calls.append(Call(self.engine, found, ports))
        return True

    def prepare_backward(self) -> bool:
        at = self.at
        if at.param_propagate_down[0] and not self._prepare_weights():
            return False
        return not at.propagate_down[0] or self._prepare_data()

    def _prepare_weights(self) -> bool:
        at = self.at
        found = self.describe(
            "convolution_backward_weights",
            Algorithm.CONVOLUTION,
            self.any(self.image),
            self.any(self.w),
            None,
            self.any(self.maps),
            *self.window,
            self.hint.handle,
            self.engine.attributes,
        )
        layouts = found and found.layouts(Query.SRC, Query.DIFF_WEIGHTS, Query.DIFF_DST)
        if not found or not layouts:
            return False
        dy, w, x = layouts
        ports = [
            Reader(Arg.SRC, at.top[0], dy, diff=True),
            Reader(Arg.DIFF_DST, at.bottom[0], x),
            Gradient(Arg.DIFF_WEIGHTS, at.params[0], w, diff=True),
        ]
        self.backward_calls.append(Call(self.engine, found, ports))
        return True

    def _prepare_data(self) -> bool:
        at, found = self.at, self.hint
        layouts = found.layouts(Query.SRC, Query.WEIGHTS, Query.DST)
        if not layouts:
            return False
        dy, w, dx = layouts
        ports = [
            Reader(Arg.SRC, at.top[0], dy, diff=True),
            Reader(Arg.WEIGHTS, at.params[0], w),
            Writer(Arg.DST, at.bottom[0], dx, diff=True),
        ]
        self.backward_calls.append(Call(self.engine, found, ports))
        self.backend.promise(at.bottom[0], dx, diff=True)
        return True

    def backward(self) -> None:
        super().backward()
        if self.op.bias and self.at.param_propagate_down[1]:
            dy = self.at.top[0].read_diff().reshape(*self.image[:2], -1)
            self.at.params[1].add_diff(np.add.reduce(np.add.reduce(dy, axis=2), axis=0))


@OnednnBackend.lowers(ops.Deconv)
def deconv(backend: Any, op: ops.Deconv, at: Operands) -> Step | None:
    """Transposed convolution over one to three axes."""
    if not suits(op, at):
        return None
    step = DeconvStep(backend, op, at)
    return step if step.prepare() else None
