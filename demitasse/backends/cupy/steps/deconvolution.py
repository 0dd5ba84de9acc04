"""Deconvolution: the weight times the map, added up to the image."""

from __future__ import annotations

from typing import ClassVar

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.backends.cupy.library.convolutions import Result
from demitasse.backends.cupy.steps.windows import WindowStep
from demitasse.backends.windows import ConvGeometry

__all__ = ["DeconvStep"]


class DeconvStep(WindowStep[ops.Deconv]):
    """The bottom is the map, the top is the image.

    Shapes: as ``ops.Deconv`` says.
    """

    computes: ClassVar[Result] = "image"
    spreads: ClassVar[Result] = "maps"

    @property
    def code(self) -> str:
        return self.products.image_code

    def geometry(self) -> ConvGeometry:
        return ConvGeometry.between(self.op, self.op.top, self.op.bottom)

    def compute(self, x: Array, weight: Array, bias: Array | None, y: Array) -> None:
        self.products.backward(x, weight, spread=y)
        if bias is not None:
            self.add_bias(y, bias)

    def gradients(
        self, x: Array, weight: Array, dy: Array, dw: Array | None, dx: Array | None
    ) -> None:
        self.products.backward(x, weight, image=dy, total=dw)
        if dx is not None:
            self.products.forward(dy, weight, None, dx)
