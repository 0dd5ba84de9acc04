"""Scale and its bias in one kernel; both parameters' gradients in one or two others."""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.cupy.step import GpuStep
from demitasse.backends.cupy.sums import ChannelSums
from demitasse.backends.step import Declined, Operands

__all__ = ["ScaleStep"]


class ScaleStep(GpuStep[ops.Scale]):
    """y = x s (+ b) with a learned s; in place or not.

    Shapes: x and y (outer, dim, inner), s and b (dim,).
    """

    narrow_params = ()

    def __init__(self, engine: Engine, op: ops.Scale, at: Operands) -> None:
        super().__init__(engine, op, at)
        if len(at.bottom) > 1:
            message = "a scale from a second bottom; the kernel takes a learned one"
            raise Declined(message)
        count, packs = op.outer * op.dim * op.inner, engine.packs
        size = ("elementwise", "scale", self.dtype, count, op.dim, op.inner)
        self._forward, self._spread = packs(*size, int(op.bias)), packs(*size, 0)
        self._keep = packs("elementwise", "scaled", op.dtype, count, 1.0)
        wanted = at.param_propagate_down
        self.want_s, self.want_b = wanted[0], op.bias and wanted[1]
        sizes = (op.outer, op.dim, op.inner)
        self._gradients = ChannelSums(engine, op.dtype, sizes, flat=self.want_b, along=self.want_s)

    def forward(self) -> None:
        at = self.at
        x, scale = at.bottom[0].read(), at.params[0].read()
        bias = at.params[1].read() if self.op.bias else scale
        if at.in_place and at.backward and self.want_s:
            self._keep(x, at.saved("x", at.bottom[0].shape).buffer())
        self._forward(x, scale, bias, at.top[0].buffer())

    def backward(self) -> None:
        at = self.at
        dy = at.top[0].read_diff()
        if self.want_s or self.want_b:
            kept = at.in_place and self.want_s
            x = (at.saved("x", at.bottom[0].shape) if kept else at.bottom[0]).read()
            ds = at.params[0].mutable_gpu_diff() if self.want_s else None
            db = at.params[1].mutable_gpu_diff() if self.want_b else None
            self._gradients(dy, db, x, ds)
        if at.propagate_down[0]:
            scale = at.params[0].read()
            self._spread(dy, scale, scale, at.bottom[0].diff_buffer())
