"""1x1 convolutions: kernels of a Step, and their calls."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.pointwise import PointwiseSchedule, limits_pay
from demitasse.backends.onednn.jit_adapters.calls import (
    ConvKernels,
    ConvOperands,
    FilterCall,
    images_of,
)
from demitasse.backends.onednn.library.engine import Engine

if TYPE_CHECKING:
    from demitasse.backends.kernels.pointwise.convolution import PointwiseConvolution


class PointwiseKernels(ConvKernels):
    """Kernels for what the library's do not: to write into a larger output, or within limits.

    Args:
        engine: The engine.
        x: The input's shape, (N, C, H, W).
        parts: How it is divided.
    """

    takes_slopes = False

    def __init__(self, engine: Engine, x: ops.Shape, parts: PointwiseSchedule) -> None:
        super().__init__(engine, x)
        self.parts = parts

    def forward(self, operands: ConvOperands, pool: ops.Pool | None) -> PixelsCall | None:
        channel_slice = operands.target.layout.channel_slice
        x, y = (images_of(argument.layout) for argument in (operands.source, operands.target))
        in_part = channel_slice is not None and not channel_slice.is_whole
        gains = in_part or (operands.then.limited and limits_pay(self.parts))
        gains = gains or self.engine.library is None
        if not gains or x is None or y is None or pool:
            return None  # the library's own code is good
        if not (x.is_rows and y.is_rows):
            return None

        return PixelsCall(self.engine, self.parts, operands, (x, y))


class PixelsCall(FilterCall):
    """A pointwise convolution.

    Args:
        engine: The engine.
        parts: The convolution.
        operands: Its operands.
        images: Where those lie that are read, and those that are written.
    """

    def __init__(
        self,
        engine: Engine,
        parts: PointwiseSchedule,
        operands: ConvOperands,
        images: tuple[Images, Images],
    ) -> None:
        self._parts, self._images = parts, images
        super().__init__(engine, operands, parts.code, self._pass_weights)

    @cached_property
    def _kernel(self) -> PointwiseConvolution:
        from demitasse.backends.kernels.pointwise.convolution import PointwiseConvolution

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
