"""Convolutions of single pixels."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from demitasse.backends import ops
from demitasse.backends.kernels.pointwise import limits_pay
from demitasse.backends.kernels.pointwise.schedule import Parts
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.own_kernels.convolutions.kernels import ConvKernels
from demitasse.backends.onednn.own_kernels.images import images_of
from demitasse.backends.onednn.steps.conv_operands import ConvOperands, GradientOperands

if TYPE_CHECKING:
    from demitasse.backends.onednn.own_kernels.convolutions.pointwise_calls import (
        PixelsCall,
        PixelsGradientCall,
    )

__all__ = ["PointwiseGradients", "PointwiseKernels"]

IMAGE_AXES = 4


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


class PointwiseGradients(ConvKernels):
    """The gradient of few filters; all else is the library's, and that of windows of more pixels.

    Args:
        engine: The engine.
        x: The input's shape, (N, C, H, W).
        y: The output's shape.
        tuning: The kernel's vectors and threads, and whether it is taken.
    """

    def __init__(self, engine: Engine, x: ops.Shape, y: ops.Shape, tuning: Tuning) -> None:
        super().__init__(engine, x)
        self._y, self._tuning = y, tuning

    def weights(self, operands: GradientOperands) -> PixelsGradientCall | None:
        tuning = self._tuning
        if not tuning.width or tuning.pointwise == "never" or len(self.x) != IMAGE_AXES:
            return None
        from demitasse.backends.kernels.pointwise.gradient import gradient_pays, lies_in_vectors

        if tuning.pointwise == "auto" and not gradient_pays(self.x, self._y, tuning):
            return None
        x, dy = images_of(operands.source.layout), images_of(operands.dy.layout)
        if x is None or dy is None or x.shape[2:] != dy.shape[2:]:
            return None
        if not (lies_in_vectors(x, tuning.width) and lies_in_vectors(dy, tuning.width)):
            return None
        if not _lie_in_vectors(operands.packed.layout, tuning.width):
            return None
        from demitasse.backends.onednn.own_kernels.convolutions.pointwise_calls import (
            PixelsGradientCall,
        )

        operands = replace(operands, weight=operands.packed)
        return PixelsGradientCall(self.engine, operands, (x, dy), tuning)


def _lie_in_vectors(filters: Layout, width: int) -> bool:
    """Return whether filters lie in blocks of a vector's, each channel after channel."""
    m, c, *_ = filters.shape
    parts = [(0, m // width, c * width), (1, c, width), (0, width, 1)]
    return not filters.plain and list(filters.key[1]) == parts[m == width :]
