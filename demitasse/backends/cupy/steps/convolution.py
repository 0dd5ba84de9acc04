"""Convolution: the image, or its columns, multiplied by the weight."""

from __future__ import annotations

from typing import ClassVar

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.backends.cupy.library.convolutions import Result
from demitasse.backends.cupy.steps.windows import WindowStep
from demitasse.backends.windows import ConvGeometry

__all__ = ["ConvStep"]


class ConvStep(WindowStep[ops.Conv]):
    """The bottom is the image, the top is the map.

    Shapes: as ``ops.Conv`` says.
    """

    computes: ClassVar[Result] = "maps"
    spreads: ClassVar[Result] = "image"

    @property
    def code(self) -> str:
        return self.products.map_code

    def geometry(self) -> ConvGeometry:
        return ConvGeometry.between(self.op, self.op.bottom, self.op.top)

    def compute(self, x: Array, weight: Array, bias: Array | None, y: Array) -> None:
        self.products.forward(x, weight, bias, y)

    def gradients(
        self, x: Array, weight: Array, dy: Array, dw: Array | None, dx: Array | None
    ) -> None:
        self.products.backward(dy, weight, image=x, total=dw, spread=dx)
