"""Convolutions of many channels to few."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from demitasse.backends import ops
from demitasse.backends.kernels.narrow.schedule import Lines
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.own_kernels.convolutions.kernels import ConvKernels
from demitasse.backends.onednn.own_kernels.images import fitting
from demitasse.backends.onednn.ports import Writer
from demitasse.backends.onednn.steps.conv_operands import ConvOperands

if TYPE_CHECKING:
    from demitasse.backends.onednn.own_kernels.convolutions.narrow_calls import NarrowCall

__all__ = ["NarrowKernels"]


class NarrowKernels(ConvKernels):
    """Kernels of convolutions to few channels, without gradients.

    Args:
        engine: The engine.
        x: The input's shape, (N, C, H, W).
        lines: How it is divided.
    """

    gains_more = True

    def __init__(self, engine: Engine, x: ops.Shape, lines: Lines) -> None:
        super().__init__(engine, x)
        self.lines = lines

    def forward(self, operands: ConvOperands, pool: ops.Pool | None) -> NarrowCall | None:
        lines = self.lines
        source = self._as_it_comes(operands.source, lines.width)
        x = fitting(source.layout, lines.width)
        if x is None or pool:
            return None
        from demitasse.backends.onednn.own_kernels.convolutions.narrow_calls import NarrowCall

        target = Writer(Arg.DST, operands.target.blob, self.engine.plain(lines.y))
        operands = replace(operands, source=source, target=target)
        return NarrowCall(self.engine, lines, operands, x)
