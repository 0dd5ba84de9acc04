"""Convolutions to few channels: kernels of a Step, and their calls."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from demitasse.backends import ops
from demitasse.backends.kernels.few_outputs.schedule import FewOutputsSchedule
from demitasse.backends.kernels.images import Images
from demitasse.backends.onednn.arguments import OutputArg
from demitasse.backends.onednn.jit_adapters.calls import ChannelCall
from demitasse.backends.onednn.jit_adapters.convolutions.interface import ConvKernels
from demitasse.backends.onednn.jit_adapters.images import images_in_vectors
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.steps.conv_operands import ConvOperands

if TYPE_CHECKING:
    from demitasse.backends.kernels.few_outputs.convolution import NarrowConvolution

__all__ = ["NarrowCall", "NarrowKernels"]


class NarrowKernels(ConvKernels):
    """Kernels of convolutions to few channels, without gradients.

    Args:
        engine: The engine.
        x: The input's shape, (N, C, H, W).
        lines: How it is divided.
    """

    gains_more = True

    def __init__(self, engine: Engine, x: ops.Shape, lines: FewOutputsSchedule) -> None:
        super().__init__(engine, x)
        self.lines = lines

    def forward(self, operands: ConvOperands, pool: ops.Pool | None) -> NarrowCall | None:
        lines = self.lines
        source = self._as_it_comes(operands, lines.width)
        x = images_in_vectors(source.layout, lines.width)
        if x is None or pool:
            return None

        target = OutputArg(Arg.DST, operands.target.blob, self.engine.plain(lines.y))
        operands = replace(operands, source=source, target=target)
        return NarrowCall(self.engine, lines, operands, x)


class NarrowCall(ChannelCall):
    """A convolution to few channels.

    Args:
        engine: The engine.
        lines: The convolution.
        operands: Its operands; the target is in C order.
        x: Where those lie that are read.
    """

    def __init__(
        self, engine: Engine, lines: FewOutputsSchedule, operands: ConvOperands, x: Images
    ) -> None:
        self._lines, self._x = lines, x
        super().__init__(engine, operands, lines.code)

    @cached_property
    def _kernel(self) -> NarrowConvolution:
        from demitasse.backends.kernels.few_outputs.convolution import NarrowConvolution

        return NarrowConvolution(self._lines, self._x, self.operands.then)
