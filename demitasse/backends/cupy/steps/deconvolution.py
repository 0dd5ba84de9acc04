"""Deconvolution: the weight times the map gives columns, which are added up to the image."""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.backends.cupy.steps.windows import WindowStep
from demitasse.backends.windows import ConvGeometry

__all__ = ["DeconvStep"]


class DeconvStep(WindowStep[ops.Deconv]):
    """The bottom is the map, the top is the image.

    Shapes: as ``ops.Deconv`` says.
    """

    @property
    def code(self) -> str:
        return "cuBLAS" if self.correlation.direct else "cuBLAS + col2im"

    def geometry(self) -> ConvGeometry:
        return ConvGeometry.between(self.op, self.op.top, self.op.bottom)

    def compute(self, x: Array, weight: Array, bias: Array | None, y: Array) -> None:
        self.correlation.backward(x, weight, spread=y)
        if bias is not None:
            self.add_bias(y, bias)

    def gradients(
        self, x: Array, weight: Array, dy: Array, dw: Array | None, dx: Array | None
    ) -> None:
        self.correlation.backward(x, weight, image=dy, total=dw)
        if dx is not None:
            self.correlation.forward(dy, weight, None, dx)
