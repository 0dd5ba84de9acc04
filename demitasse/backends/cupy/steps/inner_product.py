"""Fully connected layers: one matrix product, and one kernel for the bias."""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.cupy.library.gemm import Product
from demitasse.backends.cupy.step import NEEDS_BOTTOM, GpuStep
from demitasse.backends.cupy.sums import ChannelSums
from demitasse.backends.step import Operands, decline_in_place

__all__ = ["InnerProductStep"]


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
        self._dw = Product(dtype, *sizes, rows, transpose_a=True, accumulate=True)
        self._add_bias = engine.packs("conv", "add_bias", dtype, rows * m, m, 1)
        self._db = ChannelSums(engine, op.dtype, (rows, m, 1))

    @property
    def code(self) -> str:
        return "cuBLAS" if self.dtype == self.op.dtype else f"cuBLAS ({self.dtype})"

    def forward(self) -> None:
        at = self.at
        x, weight = at.bottom[0].read(), at.params[0].read()
        y = at.top[0].buffer()
        self.engine.multiply(self._y, x, weight, y)
        if self.op.bias:
            self._add_bias(y, at.params[1].read())

    def backward(self) -> None:
        at = self.at
        x, dy = at.bottom[0].read(), at.top[0].read_diff()
        if at.param_propagate_down[0]:
            pair = (x, dy) if self.op.transpose else (dy, x)
            self.engine.multiply(self._dw, *pair, at.params[0].mutable_gpu_diff())
        if self.op.bias and at.param_propagate_down[1]:
            self._db(dy, at.params[1].mutable_gpu_diff())
        if at.propagate_down[0]:
            weight = at.params[0].read()
            self.engine.multiply(self._dx, dy, weight, at.bottom[0].diff_buffer())
