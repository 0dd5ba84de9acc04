"""Products of rows with a learned weight, over buffers that a Step names anew in every run."""

from __future__ import annotations

import numpy as np

from demitasse.backends.onednn.library.constants import Arg, Pass, Query
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.ports import Call, Gradient, Parameter, Port, Reader
from demitasse.backends.step import Operand
from demitasse.errors import DeviceError

__all__ = ["Own", "Product"]


FEW = 8
"""Rows below which a packed weight is no faster than one in C order."""


class Own(Port):
    """An argument that is a buffer of the Step's own, or a part of one.

    Attributes:
        buffer: What the next run works on, contiguous.
    """

    __slots__ = ("buffer",)

    def __init__(self, role: int, layout: Layout, buffer: np.ndarray | None = None) -> None:
        super().__init__(role, layout)
        self.buffer = buffer

    def array(self) -> np.ndarray:
        if self.buffer is None:
            message = "a product was run before its buffers were named"
            raise DeviceError(message)
        return self.buffer


class Product:
    """y = x W^T + b and its gradients. Shapes: x (rows, k), W (m, k), b (m,), y (rows, m).

    The weight is packed in the primitive's layout whenever it has changed, not in every run; for
    few rows it stays as it is.

    Args:
        engine: The engine.
        rows: How many rows.
        weight: The blob of W, of this very shape.
        bias: The blob of b, or None.
        attributes: What happens to the product; by default it overwrites the target.
        alone: Whether the weight may lie in the primitive's layout alone, as nothing learns it.

    Raises:
        Declined: The library has no good primitive.
    """

    def __init__(
        self,
        engine: Engine,
        rows: int,
        weight: Operand,
        bias: Operand | None = None,
        *,
        attributes: int | None = None,
        alone: bool = False,
    ) -> None:
        self._reader = Parameter if alone else Reader
        self._engine, self._weight, self._bias = engine, weight, bias
        m, k = weight.shape
        self.x, self.y, self.w = (engine.plain(shape) for shape in ((rows, k), (rows, m), (m, k)))
        self._row = None if bias is None else engine.plain((m,))
        self._forward = engine.describe(
            "inner_product_forward",
            Pass.TRAINING,
            self.x.handle,
            engine.any((m, k)) if rows >= FEW else self.w.handle,
            self._row.handle if self._row else None,
            self.y.handle,
            engine.attributes if attributes is None else attributes,
        )
        self._packed = self._forward.layout(Query.WEIGHTS)

    def forward(self, x: Port, y: Port) -> Call:
        """Return what computes y."""
        ports = [x, self._reader(Arg.WEIGHTS, self._weight, self._packed)]
        if self._row and self._bias:
            ports.append(Reader(Arg.BIAS, self._bias, self._row))
        return Call(self._engine, self._forward, [*ports, y])

    def gradient(self, dy: Port, dx: Port) -> Call:
        """Return what computes the gradient of x.

        The weight is used as it is, in C order: for few rows that is the fastest there is.
        """
        found = self._engine.describe(
            "inner_product_backward_data",
            self.x.handle,
            self.w.handle,
            self.y.handle,
            self._forward.handle,
            self._engine.attributes,
        )
        return Call(self._engine, found, [dy, Reader(Arg.WEIGHTS, self._weight, self.w), dx])

    def gradients(self, x: Port, dy: Port, *, bias: bool) -> Call:
        """Return what adds to the gradients of W and, with ``bias``, of b."""
        row = self._row if bias else None
        found = self._engine.describe(
            "inner_product_backward_weights",
            self.x.handle,
            self.w.handle,
            row.handle if row else None,
            self.y.handle,
            self._forward.handle,
            self._engine.attributes,
        )
        ports = [x, dy, Gradient(Arg.DIFF_WEIGHTS, self._weight, self.w)]
        if row and self._bias:
            ports.append(Gradient(Arg.DIFF_BIAS, self._bias, row))
        return Call(self._engine, found, ports)
