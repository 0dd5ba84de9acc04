"""Fully connected layers: one matrix product, and one kernel for the bias."""

from __future__ import annotations

from typing import Any

from demitasse.backends import ops
from demitasse.backends.base import Operands, Step
from demitasse.backends.cupy.backend import CupyBackend
from demitasse.backends.cupy.library.gemm import Product
from demitasse.backends.cupy.step import DTYPES, EngineStep, total_of

__all__ = ["InnerProductStep"]


class InnerProductStep(EngineStep):
    """y = x W^T + b on rows of x.

    Shapes: x (rows, k), W (m, k), or (k, m) with ``transpose``, b (m,), y (rows, m).
    """

    def __init__(self, backend: Any, op: ops.InnerProduct, operands: Operands) -> None:
        super().__init__(backend, operands)
        rows, k, m, dtype = op.rows, op.k, op.m, op.dtype
        self.bias, self.transpose = op.bias, op.transpose
        self._y = Product(dtype, rows, m, k, transpose_b=not op.transpose)
        self._dx = Product(dtype, rows, k, m, transpose_b=op.transpose)
        sizes = (k, m) if op.transpose else (m, k)
        self._dw = Product(dtype, *sizes, rows, transpose_a=True, accumulate=True)
        self._add_bias = self.engine.each("conv", "add_bias", dtype, rows * m, m, 1)
        self._db = self.engine.rows("conv", "add_channel_sums", dtype, m, rows, m, rows, 1)

    def forward(self) -> None:
        at = self.operands
        x, weight = at.bottom[0].read(), at.params[0].read()
        y = at.top[0].buffer()
        self.engine.multiply(self._y, x, weight, y)
        if self.bias:
            self._add_bias(y, at.params[1].read())

    def backward(self) -> None:
        at = self.operands
        x, dy = at.bottom[0].read(), at.top[0].read_diff()
        if at.param_propagate_down[0]:
            pair = (x, dy) if self.transpose else (dy, x)
            self.engine.multiply(self._dw, *pair, total_of(at.params[0]))
        if self.bias and at.param_propagate_down[1]:
            self._db(dy, total_of(at.params[1]))
        if at.propagate_down[0]:
            weight = at.params[0].read()
            self.engine.multiply(self._dx, dy, weight, at.bottom[0].diff_buffer())


@CupyBackend.lowers(ops.InnerProduct)
def lower(backend: Any, op: ops.InnerProduct, operands: Operands) -> Step | None:
    """Lower all but products in place, which cannot be."""
    if op.dtype not in DTYPES or operands.in_place:
        return None
    return InnerProductStep(backend, op, operands)
