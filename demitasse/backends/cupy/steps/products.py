"""InnerProduct and Scale."""

import math

from demitasse.backends import ops
from demitasse.backends.cupy.layout import reads_channels_last
from demitasse.backends.cupy.library.cublas import Product
from demitasse.backends.cupy.library.cublas_lt import BiasProduct
from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.cupy.step import NEEDS_BOTTOM, GpuStep
from demitasse.backends.cupy.sums import ChannelSums
from demitasse.backends.step import Declined, Operands, decline_if, decline_in_place
from demitasse.core.config import settings


class InnerProductStep(GpuStep[ops.InnerProduct]):
    """y = x W^T + b on rows of x.

    Shapes: x (rows, k), W (m, k), or (k, m) with ``transpose``, b (m,), y (rows, m).
    """

    narrow_params = (0,)

    def __init__(self, engine: Engine, op: ops.InnerProduct, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_in_place(self.at, NEEDS_BOTTOM)
        rows, k, m, dtype = op.rows, op.k, op.m, self.dtype
        self._y = Product(dtype, rows, m, k, transpose_b=not op.transpose)
        self._dx = Product(dtype, rows, k, m, transpose_b=op.transpose)
        sizes = (k, m) if op.transpose else (m, k)
        self._dw = [
            Product(dtype, *sizes, rows, transpose_a=True, accumulate=added, wide=True)
            for added in (False, True)
        ]
        self._add_bias = engine.vectorized("conv", "add_bias", dtype, rows * m, m, 1)
        self._db = ChannelSums(engine, dtype, (rows, m, 1))
        self._with_bias: BiasProduct | None = None
        if op.bias and settings.get("cublas_bias"):
            try:
                self._with_bias = engine.prepare_bias_product(self._y)
            except Declined as declined:
                self.declined = (str(declined),)
            else:  # of the output's type
                self._bias = self.form.parameter(engine, at.params[1], at)

    @property
    def code(self) -> str:
        return f"cuBLAS{'' if self._with_bias is None else 'Lt'}{self.remark}"

    @property
    def backward_code(self) -> str:
        return f"cuBLAS{self.remark}"

    def forward(self) -> None:
        at, engine, fused = self.at, self.engine, self._with_bias
        x, weight = at.bottom[0].read(), at.params[0].read()
        y = at.top[0].buffer()
        if fused is not None:
            bias = self._bias.read()
            if fused.run(x, weight, bias, y):
                return
        engine.multiply(self._y, x, weight, y)
        if self.op.bias:
            self._add_bias(y, at.params[1].read())

    def backward(self) -> None:
        at = self.at
        x, dy = at.bottom[0].read(), at.top[0].read_diff()
        if at.param_propagate_down[0]:
            pair = (x, dy) if self.op.transpose else (dy, x)
            total, added = at.params[0].diff_total()
            self.engine.multiply(self._dw[added], *pair, total)
        if self.op.bias and at.param_propagate_down[1]:
            self._db(dy, at.params[1].diff_total())
        if at.propagate_down[0]:
            weight = at.params[0].read()
            self.engine.multiply(self._dx, dy, weight, at.bottom[0].diff_buffer())


class ScaleStep(GpuStep[ops.Scale]):
    """y = x s (+ b) with a learned s; in place or not.

    Shapes: x and y (outer, dim, inner), s and b (dim,).
    """

    narrow_params = ()

    def takes_last(self, engine: Engine, op: ops.Scale, at: Operands) -> bool:
        shape = at.bottom[0].shape
        channels = (*shape[:2], math.prod(shape[2:]))
        return (op.outer, op.dim, op.inner) == channels and reads_channels_last(at)

    def __init__(self, engine: Engine, op: ops.Scale, at: Operands) -> None:
        super().__init__(engine, op, at)
        why = "a scale from a second bottom; the kernel takes a learned one"
        decline_if(len(at.bottom) > 1, why)
        count, packs = op.outer * op.dim * op.inner, engine.vectorized
        inner = 1 if self.last else op.inner
        size = ("elementwise", "scale", self.dtype, count, op.dim, inner)
        self._forward, self._spread = packs(*size, int(op.bias)), packs(*size, 0)
        self._keep = packs("elementwise", "scaled", self.dtype, count, 1.0)
        learned = at.param_propagate_down
        self.want_s, self.want_b = learned[0], op.bias and learned[1]
        sizes = (op.outer, op.dim, op.inner)
        wanted = {"flat": self.want_b, "along": self.want_s}
        self._gradients = ChannelSums(engine, self.dtype, sizes, **wanted, last=self.last)

    def forward(self) -> None:
        at = self.at
        x, scale = at.bottom[0].read(), at.params[0].read()
        bias = at.params[1].read() if self.op.bias else scale
        if at.in_place and at.backward and self.want_s:
            self._keep(x, self.saved("x", at.bottom[0].shape).buffer())
        self._forward(x, scale, bias, at.top[0].buffer())

    def backward(self) -> None:
        at = self.at
        dy = at.top[0].read_diff()
        if self.want_s or self.want_b:
            kept = at.in_place and self.want_s
            x = (self.saved("x", at.bottom[0].shape) if kept else at.bottom[0]).read()
            ds = at.params[0].diff_total() if self.want_s else None
            db = at.params[1].diff_total() if self.want_b else None
            self._gradients(dy, db, x, ds)
        if at.propagate_down[0]:
            scale = at.params[0].read()
            self._spread(dy, scale, scale, at.bottom[0].diff_buffer())
