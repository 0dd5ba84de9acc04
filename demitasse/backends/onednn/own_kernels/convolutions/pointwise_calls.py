"""Calls of pointwise convolutions."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.pointwise.convolution import PointwiseConvolution
from demitasse.backends.kernels.pointwise.parts import Parts
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.own_kernels.calls import (
    FilterCall,
)
from demitasse.backends.onednn.steps.conv_operands import ConvOperands

__all__ = ["PixelsCall"]


class PixelsCall(FilterCall):
    """A pointwise convolution.

    Args:
        engine: The engine.
        parts: The convolution.
        operands: Its operands.
        images: Where those lie that are read, and those that are written.
    """

    def __init__(
        self, engine: Engine, parts: Parts, operands: ConvOperands, images: tuple[Images, Images]
    ) -> None:
        self._parts, self._images = parts, images
        super().__init__(engine, operands, parts.code, self._pass_weights)

    @cached_property
    def _kernel(self) -> PointwiseConvolution:
        return PointwiseConvolution(self._parts, *self._images, None, self.operands.then)

    @cached_property
    def _none(self) -> np.ndarray:
        return aligned(self._parts.y[1])

    def __call__(self) -> None:
        source, target = self.operands.source.array(), self.operands.target.array()
        self._follow()
        offsets = self.operands.offsets()
        [scratch] = self.engine.workspaces(self._kernel.scratch_size)
        self._kernel(source, target, self._none if offsets is None else offsets, scratch)
