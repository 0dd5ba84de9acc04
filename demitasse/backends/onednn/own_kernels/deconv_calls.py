"""Calls of deconvolutions: a product for each pixel, and a kernel that adds up what overlaps."""

from __future__ import annotations

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.overlaps import Overlaps
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.onednn.library.constants import Arg, Pass, Query
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.primitive import Primitive
from demitasse.backends.onednn.own_kernels.calls import ConvCall
from demitasse.backends.onednn.steps.conv_operands import ConvOperands

__all__ = ["OverlapCall"]


class OverlapCall(ConvCall):
    """A deconvolution of one group over two axes, with the channels last.

    Args:
        engine: The engine.
        op: The deconvolution.
        operands: Its operands.
        tuning: The kernel's vectors and threads.

    Raises:
        Declined: The library has no product for it.
    """

    def __init__(
        self, engine: Engine, op: ops.Deconv, operands: ConvOperands, tuning: Tuning
    ) -> None:
        n, c, *bottom = op.bottom
        _, m, *top = op.top
        rows, outputs = n * bottom[0] * bottom[1], op.kernel[0] * op.kernel[1] * m
        self._filters = m, c, *op.kernel
        x, self._plain, y = (
            engine.plain(shape) for shape in ((rows, c), (outputs, c), (rows, outputs))
        )
        found = engine.describe(
            "inner_product_forward",
            Pass.INFERENCE,
            x.handle,
            engine.any((outputs, c)),
            None,
            y.handle,
            engine.attributes,
        )
        self._weight, self._size = found.layout(Query.WEIGHTS), y.size
        self._packed = aligned(self._weight.size)
        uses = (Arg.SRC, x.handle), (Arg.WEIGHTS, self._weight.handle), (Arg.DST, y.handle)
        self._product = Primitive(engine.stream, found, uses)
        self._product.bind(self._product.place(Arg.WEIGHTS), self._packed)
        images = (n, *bottom), (n, *top, m)
        self._kernel = Overlaps(*images, op.kernel, op.stride, op.pad, tuning)
        code = f"{found.implementation}, overlaps llvm:{tuning.instructions}"
        super().__init__(engine, operands, code, self._pass_weights, self._kernel.take_offsets)
        operands.target.promise(engine)

    def _pass_weights(self, weights: np.ndarray) -> None:
        m, c, *kernel = self._filters
        rows = weights.reshape(c, m, *kernel).transpose(2, 3, 1, 0)
        ordered = np.ascontiguousarray(rows).reshape(-1)
        self.engine.reorder(ordered, self._plain, self._packed, self._weight)

    @property
    def kept(self) -> int:
        return self._packed.nbytes

    def __call__(self) -> None:
        source, target = self.operands.source.array(), self.operands.target.array()
        self._follow()
        [windows] = self.engine.workspaces(self._size)
        product = self._product
        product.bind(product.place(Arg.SRC), source)
        product.bind(product.place(Arg.DST), windows)
        product.run()
        self._kernel(windows, target)
