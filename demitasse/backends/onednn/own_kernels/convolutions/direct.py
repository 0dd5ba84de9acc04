"""Direct convolutions of few channels."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from demitasse.backends import ops
from demitasse.backends.kernels.direct.schedule import Banding
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.own_kernels.convolutions.kernels import ConvKernels
from demitasse.backends.onednn.own_kernels.images import fitting
from demitasse.backends.onednn.ports import Writer
from demitasse.backends.onednn.steps.conv_operands import ConvOperands, GradientOperands

if TYPE_CHECKING:
    from demitasse.backends.onednn.own_kernels.convolutions.direct_calls import (
        DirectCall,
        DirectGradientCall,
    )

__all__ = ["DirectKernels"]


class DirectKernels(ConvKernels):
    """Kernels of direct convolution, which reads images in C order.

    Args:
        engine: The engine.
        x: The input's shape, (N, C, H, W).
        banding: How it is divided.

    Attributes:
        replaces_copies: Whether the library multiplies matrices made of copied windows here, as
            where an image has more padding than a window is wide; the kernels run then.
    """

    takes_slopes = False

    def __init__(self, engine: Engine, x: ops.Shape, banding: Banding) -> None:
        super().__init__(engine, x)
        self.banding, self.replaces_copies = banding, False
        self.pads_filters = banding.pads

    def forward(self, operands: ConvOperands, pool: ops.Pool | None) -> DirectCall | None:
        if not (pool or self.banding.pads or self.replaces_copies):
            return None  # the library's own code is good
        target = operands.target
        if pool:  # without gradients; those would read it in the layout of before
            target = self._as_it_is_read(target, self.banding.width)
        y = fitting(target.layout, self.banding.width)
        if y is None:
            return None
        from demitasse.backends.onednn.own_kernels.convolutions.direct_calls import DirectCall

        banding = replace(self.banding, pool=pool)
        operands = replace(operands, source=self._plain(operands.source), target=target)
        return DirectCall(self.engine, banding, operands, y)

    def _as_it_is_read(self, port: Writer, width: int) -> Writer:
        """Return a port of the same blob in the layout in which it will be read, if that fits."""
        wished = self.engine.wished(port.blob.data_memory, port.layout.shape)
        if wished is None or not fitting(wished, width):
            return port
        return Writer(Arg.DST, port.blob, wished)

    def weights(self, operands: GradientOperands) -> DirectGradientCall | None:
        y = fitting(operands.dy.layout, self.banding.width)
        if y is None:
            return None
        from demitasse.backends.onednn.own_kernels.convolutions.direct_calls import (
            DirectGradientCall,
        )

        operands = replace(operands, source=self._plain(operands.source))
        return DirectGradientCall(self.engine, self.banding, operands, y)
