"""The kernels of our own that a convolution may run: over tiles, or over pictures' windows."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from demitasse.backends import ops
from demitasse.backends.kernels import language as jit
from demitasse.backends.kernels.direct import windows_of
from demitasse.backends.kernels.winograd import tiling_of
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.ports import Gradient, Reader
from demitasse.backends.onednn.step import Runnable
from demitasse.backends.onednn.steps.conv_operands import ConvOperands
from demitasse.backends.onednn.threads import wanted
from demitasse.backends.step import Declined

if TYPE_CHECKING:
    from demitasse.backends.kernels.direct.convolution import PictureConvolution
    from demitasse.backends.kernels.winograd.convolution import TiledConvolution
    from demitasse.backends.kernels.winograd.filters import Filters
    from demitasse.backends.kernels.winograd.tiling import Tiling

__all__ = ["ConvKernels"]


class ConvKernels:
    """What is run in place of the library's primitives, where it pays.

    Every method gives None where it does not, or where it cannot be made for the layouts.

    Args:
        engine: The engine.
        op: The convolution.
        x: Its input's shape, (N, C, *spatial).
        y: Its output's shape.
        training: Whether filters change between passes.

    Attributes:
        tiling: How it is tiled, or None.
    """

    def __init__(
        self, engine: Engine, op: ops.Conv, x: ops.Shape, y: ops.Shape, *, training: bool
    ) -> None:
        self.engine, self._picture = engine, engine.plain(x)
        width, threads = engine.width if jit.status().ready else 0, wanted()
        self.tiling = tiling_of(op, x, y, width=width, threads=threads, training=training)
        self._windows = windows_of(op, x, y, width=width, threads=threads)
        self._filters: Filters | None = None

    @property
    def odd_filters(self) -> bool:
        """Whether pictures are convolved with filters that fill no whole vectors."""
        return self._windows is not None and self._windows.pads

    def forward(
        self, parts: ConvOperands, pool: ops.Pool | None
    ) -> TiledConvolution | PictureConvolution | None:
        """Return the forward pass, and perhaps MAX pooling behind it."""
        with suppress(Declined):
            if self.tiling is not None:
                return self._tiled(self.tiling, parts, pool)
            return self._pictures(parts, pool)
        if pool is None:
            self.tiling = None
        return None

    def _tiled(
        self, tiling: Tiling, parts: ConvOperands, pool: ops.Pool | None
    ) -> TiledConvolution:
        from demitasse.backends.kernels.winograd.convolution import TiledConvolution
        from demitasse.backends.kernels.winograd.filters import Filters

        if parts.weight is None:
            filters = Filters(tiling)
        else:
            filters = self._filters = self._filters or Filters(tiling)
        return TiledConvolution(self.engine, tiling, parts, filters, pool)

    def _pictures(self, parts: ConvOperands, pool: ops.Pool | None) -> PictureConvolution:
        windows = self._windows
        if windows is None or not (pool or windows.pads):
            message = "filters that fill vectors, for which the library's code is good"
            raise Declined(message)
        from demitasse.backends.kernels.direct.convolution import PictureConvolution

        source = Reader(Arg.SRC, parts.source.blob, self._picture)
        return PictureConvolution(
            self.engine, replace(windows, pool=pool), replace(parts, source=source)
        )

    def weights(
        self, source: Reader, gradient: Reader, weight: Gradient, bias: Gradient | None
    ) -> Runnable | None:
        """Return the gradient of the weights, in C order, and of the bias."""
        with suppress(Declined):
            if self.tiling is not None:
                from demitasse.backends.kernels.winograd.gradient import TiledFilterGradient

                return TiledFilterGradient(self.engine, self.tiling, source, gradient, weight, bias)
            if self._windows is not None:
                from demitasse.backends.kernels.direct.gradient import PictureGradient

                picture = Reader(Arg.SRC, source.blob, self._picture)
                return PictureGradient(self.engine, self._windows, picture, gradient, weight, bias)
        return None

    def data(self, parts: ConvOperands) -> Runnable | None:
        """Return the gradient of the input: a convolution of the output's with turned filters."""
        if self.tiling is None:
            return None
        from demitasse.backends.kernels.winograd.convolution import TiledConvolution
        from demitasse.backends.kernels.winograd.filters import Filters

        turned = self.tiling.backward
        with suppress(Declined):
            return TiledConvolution(self.engine, turned, parts, Filters(turned, backward=True))
        return None
