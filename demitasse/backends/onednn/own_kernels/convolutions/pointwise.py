"""Convolutions of single pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from demitasse.backends import ops
from demitasse.backends.kernels.pointwise import limits_pay
from demitasse.backends.kernels.pointwise.parts import Parts
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.own_kernels.convolutions.kernels import ConvKernels
from demitasse.backends.onednn.own_kernels.images import images_of
from demitasse.backends.onednn.steps.conv_operands import ConvOperands

if TYPE_CHECKING:
    from demitasse.backends.onednn.own_kernels.convolutions.pointwise_calls import PixelsCall

__all__ = ["PointwiseKernels"]


class PointwiseKernels(ConvKernels):
    """Kernels for what the library's do not: to write into a larger output, or within limits.

    Args:
        engine: The engine.
        x: The input's shape, (N, C, H, W).
        parts: How it is divided.
    """

    takes_slopes = False

    def __init__(self, engine: Engine, x: ops.Shape, parts: Parts) -> None:
        super().__init__(engine, x)
        self.parts = parts

    def forward(self, operands: ConvOperands, pool: ops.Pool | None) -> PixelsCall | None:
        home = operands.target.layout.home
        x, y = (images_of(port.layout) for port in (operands.source, operands.target))
        in_part = home is not None and not home.is_whole
        gains = in_part or (operands.then.limited and limits_pay(self.parts))
        if not gains or x is None or y is None or pool:
            return None  # the library's own code is good
        if not (x.is_rows and y.is_rows):
            return None
        from demitasse.backends.onednn.own_kernels.convolutions.pointwise_calls import PixelsCall

        return PixelsCall(self.engine, self.parts, operands, (x, y))
