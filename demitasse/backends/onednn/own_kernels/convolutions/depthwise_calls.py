"""Calls of depthwise convolutions."""

from __future__ import annotations

from functools import cached_property

from demitasse.backends.kernels.depthwise.convolution import DepthwiseConvolution
from demitasse.backends.kernels.depthwise.schedule import Strips
from demitasse.backends.kernels.images import Images
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.own_kernels.calls import (
    ChannelCall,
)
from demitasse.backends.onednn.steps.conv_operands import ConvOperands

__all__ = ["DepthwiseCall"]


class DepthwiseCall(ChannelCall):
    """A depthwise convolution.

    Args:
        engine: The engine.
        strips: The convolution.
        operands: Its operands.
        images: Where those lie that are read, and those that are written.
    """

    def __init__(
        self, engine: Engine, strips: Strips, operands: ConvOperands, images: tuple[Images, Images]
    ) -> None:
        self._strips, self._images = strips, images
        super().__init__(engine, operands, strips.code)

    @cached_property
    def _kernel(self) -> DepthwiseConvolution:
        return DepthwiseConvolution(self._strips, *self._images, self.operands.then)
