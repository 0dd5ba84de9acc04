"""Convolutions over tiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from demitasse.backends import ops
from demitasse.backends.kernels.winograd import pools_tiles
from demitasse.backends.kernels.winograd.schedule import Tiling
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.own_kernels.convolutions.kernels import ConvKernels
from demitasse.backends.onednn.own_kernels.images import fitting
from demitasse.backends.onednn.steps.conv_operands import ConvOperands, GradientOperands

if TYPE_CHECKING:
    from demitasse.backends.onednn.own_kernels.convolutions.tiled_calls import (
        TiledFilters,
        UnpackedFilters,
        WinogradCall,
        WinogradGradientCall,
    )

__all__ = ["TiledKernels"]


class TiledKernels(ConvKernels):
    """Kernels of Winograd's filtering.

    Args:
        engine: The engine.
        x: The input's shape, (N, C, *spatial).
        tiling: How it is tiled.
        training: Whether filters change between passes.
    """

    gains_more = True

    def __init__(self, engine: Engine, x: ops.Shape, tiling: Tiling, *, training: bool) -> None:
        super().__init__(engine, x)
        self.tiling, self._training = tiling, training
        # the library's blocks would be padded, of which our kernels know nothing
        width, counts = tiling.width, (tiling.channels, tiling.filters)
        self.trains_channels_last = any(count % width for count in counts)
        self._filters: TiledFilters | UnpackedFilters | None = None

    def within(self, x: Layout, y: Layout) -> ConvKernels:
        width = self.tiling.width
        if not (fitting(x, width) and fitting(y, width)):
            why = f"the layouts of the images have no blocks of {width} channels"
            return ConvKernels(self.engine, self.x, (why,))
        self._filters = self._tiled_filters(self.tiling, kept=not self._training)
        return self

    def forward(self, operands: ConvOperands, pool: ops.Pool | None) -> WinogradCall | None:
        tiling = self.tiling
        x, y = (fitting(port.layout, tiling.width) for port in (operands.source, operands.target))
        if x is None or y is None or (pool and not pools_tiles(tiling, pool)):
            return None
        if pool and operands.then.limited:  # minus infinity would not become the least number
            return None
        from demitasse.backends.onednn.own_kernels.convolutions.tiled_calls import WinogradCall

        shared = None if operands.given else self._filters
        filters = shared or self._tiled_filters(tiling, kept=not self._training)
        return WinogradCall(self.engine, tiling, operands, (x, y), filters, pool=pool is not None)

    def _tiled_filters(self, tiling: Tiling, *, kept: bool) -> TiledFilters | UnpackedFilters:
        from demitasse.backends.onednn.own_kernels.convolutions.tiled_calls import (
            TiledFilters,
            UnpackedFilters,
        )

        if tiling.unpacked or tiling.stride > 1:
            return UnpackedFilters()
        return TiledFilters(self.engine, tiling, kept=kept)

    def weights(self, operands: GradientOperands) -> WinogradGradientCall | None:
        tiling, ports = self.tiling, (operands.source, operands.dy)
        x, y = (fitting(port.layout, tiling.width) for port in ports)
        if x is None or y is None:
            return None
        from demitasse.backends.onednn.own_kernels.convolutions.tiled_calls import (
            WinogradGradientCall,
        )

        return WinogradGradientCall(self.engine, tiling, operands, (x, y))

    def data(self, operands: ConvOperands) -> WinogradCall | None:
        """Return the gradient of the input: a convolution of the output's with turned filters."""
        turned = self.tiling.backward
        x, y = (fitting(port.layout, turned.width) for port in (operands.source, operands.target))
        if x is None or y is None:
            return None
        from demitasse.backends.onednn.own_kernels.convolutions.tiled_calls import WinogradCall

        filters = self._tiled_filters(turned, kept=False)
        return WinogradCall(self.engine, turned, operands, (x, y), filters)
