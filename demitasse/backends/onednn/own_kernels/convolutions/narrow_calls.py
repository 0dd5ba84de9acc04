"""Calls of convolutions to few channels."""

from __future__ import annotations

from functools import cached_property

from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.narrow.convolution import NarrowConvolution
from demitasse.backends.kernels.narrow.schedule import Lines
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.own_kernels.calls import (
    ChannelCall,
)
from demitasse.backends.onednn.steps.conv_operands import ConvOperands

__all__ = ["NarrowCall"]


class NarrowCall(ChannelCall):
    """A convolution to few channels.

    Args:
        engine: The engine.
        lines: The convolution.
        operands: Its operands; the target is in C order.
        x: Where those lie that are read.
    """

    def __init__(self, engine: Engine, lines: Lines, operands: ConvOperands, x: Images) -> None:
        self._lines, self._x = lines, x
        super().__init__(engine, operands, lines.code)

    @cached_property
    def _kernel(self) -> NarrowConvolution:
        return NarrowConvolution(self._lines, self._x, self.operands.then)
