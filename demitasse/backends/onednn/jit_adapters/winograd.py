"""Winograd convolutions: kernels of a Step, their calls, and filters."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.winograd import WinogradSchedule, can_pool_tiles
from demitasse.backends.onednn.arguments import CachedReorder
from demitasse.backends.onednn.jit_adapters.calls import (
    ConvCall,
    ConvKernels,
    ConvOperands,
    FilterGradientCall,
    GradientOperands,
    images_in_vectors,
)
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.step import Memory
from demitasse.errors import DeviceError, ErrorCode

if TYPE_CHECKING:
    from demitasse.backends.kernels.winograd.convolution import WinogradConvolution
    from demitasse.backends.kernels.winograd.filters import Filters
    from demitasse.backends.kernels.winograd.gradient import StridedGradient, WinogradGradient


class WinogradKernels(ConvKernels):
    """Kernels of Winograd's filtering.

    Args:
        engine: The engine.
        x: The input's shape, (N, C, *spatial).
        tiling: How it is tiled.
        training: Whether filters change between passes.
    """

    gains_more = True

    def __init__(
        self, engine: Engine, x: ops.Shape, tiling: WinogradSchedule, *, training: bool
    ) -> None:
        super().__init__(engine, x)
        self.tiling, self._training = tiling, training
        # the library's blocks would be padded, of which our kernels know nothing
        width, counts = tiling.width, (tiling.channels, tiling.filters)
        self.trains_channels_last = any(count % width for count in counts)
        self._filters: TransformedFilters | PlainFilters | None = None

    def within(self, x: Layout, y: Layout) -> ConvKernels:
        width = self.tiling.width
        if not (images_in_vectors(x, width) and images_in_vectors(y, width)):
            why = f"the layouts of the images have no blocks of {width} channels"
            return ConvKernels(self.engine, self.x, (why,))
        self._filters = self._tiled_filters(self.tiling, kept=not self._training)
        return self

    def forward(self, operands: ConvOperands, pool: ops.Pool | None) -> WinogradCall | None:
        tiling = self.tiling
        x, y = (
            images_in_vectors(argument.layout, tiling.width)
            for argument in (operands.source, operands.target)
        )
        if x is None or y is None or (pool and not can_pool_tiles(tiling, pool)):
            return None
        if pool and operands.then.limited:  # minus infinity would not become the least number
            return None

        shared = None if operands.external_weights else self._filters
        filters = shared or self._tiled_filters(tiling, kept=not self._training)
        return WinogradCall(self.engine, tiling, operands, (x, y), filters, pool=pool is not None)

    def _tiled_filters(
        self, tiling: WinogradSchedule, *, kept: bool
    ) -> TransformedFilters | PlainFilters:
        if tiling.stride > 1:
            return PlainFilters()
        return TransformedFilters(self.engine, tiling, kept=kept)

    def weights(self, operands: GradientOperands) -> WinogradGradientCall | None:
        tiling, arguments = self.tiling, (operands.source, operands.dy)
        x, y = (images_in_vectors(argument.layout, tiling.width) for argument in arguments)
        if x is None or y is None:
            return None

        return WinogradGradientCall(self.engine, tiling, operands, (x, y))

    def data(self, operands: ConvOperands) -> WinogradCall | None:
        """Return the gradient of the input: a convolution of the output's with turned filters."""
        turned = self.tiling.backward
        x, y = (
            images_in_vectors(argument.layout, turned.width)
            for argument in (operands.source, operands.target)
        )
        if x is None or y is None:
            return None

        filters = self._tiled_filters(turned, kept=False)
        return WinogradCall(self.engine, turned, operands, (x, y), filters)


class TransformedFilters:
    """Filters at the points, which follow a parameter or are given.

    Args:
        engine: The engine.
        tiling: The convolution, or that which is the gradient of its input.
        kept: Whether the parameter stays what it is for many passes.
    """

    def __init__(self, engine: Engine, tiling: WinogradSchedule, *, kept: bool = False) -> None:
        self._engine, self._tiling = engine, tiling
        self._copy = CachedReorder(Arg.WEIGHTS, tiling.filter_size, self._transform, kept=kept)
        self._given: np.ndarray | None = None

    @cached_property
    def _filters(self) -> Filters:
        from demitasse.backends.kernels.winograd.filters import Filters

        return Filters(self._tiling)

    def of(self, operands: ConvOperands) -> np.ndarray:
        """Return them as the parameter is now, or as they were given; to be used at once."""
        if not operands.external_weights:
            return self._copy.of(operands.weight.data_memory, self._engine)
        if self._given is None:
            message = "filters of a convolution were used before they were given"
            raise DeviceError(message, code=ErrorCode.BAD_STATE)
        return self._given

    def update(self, weights: np.ndarray) -> None:
        """Take weights, in C order."""
        if self._given is None:
            self._given = aligned(self._tiling.filter_size)
        self._filters.update(weights, self._given)

    def _transform(self, memory: Memory, points: np.ndarray) -> None:
        self._filters.update(memory.cpu_data(), points)

    @property
    def nbytes(self) -> int:
        """Bytes that it keeps."""
        return self._copy.nbytes + (0 if self._given is None else self._given.nbytes)


class PlainFilters:
    """Filters as the parameter holds them, in C order: those are what the kernel reads."""

    nbytes = 0
    """Bytes that it keeps."""

    def of(self, operands: ConvOperands) -> np.ndarray:
        """Return them as the parameter is now; to be used at once."""
        return operands.weight.data_memory.cpu_data()

    def update(self, weights: np.ndarray) -> None:
        """Refuse weights: strides run in training alone, where nothing is folded."""
        message = f"{weights.size} weights were given to a convolution that reads its parameter"
        raise DeviceError(message, code=ErrorCode.BAD_STATE)


class WinogradCall(ConvCall):
    """A convolution over tiles.

    Args:
        engine: The engine.
        tiling: The convolution.
        operands: Its operands.
        images: Where those lie that are read, and those that are written.
        filters: At the points, or in C order for stride 2.
        pool: Whether pairs of rows and columns are pooled.
    """

    def __init__(
        self,
        engine: Engine,
        tiling: WinogradSchedule,
        operands: ConvOperands,
        images: tuple[Images, Images],
        filters: TransformedFilters | PlainFilters,
        *,
        pool: bool = False,
    ) -> None:
        self.tiling, self.filters = tiling, filters
        self._images, self._pool = images, pool
        take = filters.update, self._pass_offsets, self._pass_slopes
        super().__init__(engine, operands, tiling.code, *take)

    @cached_property
    def _kernel(self) -> WinogradConvolution:
        from demitasse.backends.kernels.winograd.convolution import WinogradConvolution

        then = self.operands.then
        return WinogradConvolution(self.tiling, *self._images, then, pool=self._pool)

    def _pass_offsets(self, offsets: np.ndarray) -> None:
        self._kernel.take_offsets(offsets)

    def _pass_slopes(self, slopes: np.ndarray) -> None:
        self._kernel.take_slopes(slopes)

    @property
    def kept_bytes(self) -> int:
        return self.filters.nbytes

    def __call__(self) -> None:
        operands = self.operands
        source, target = operands.source.array(), operands.target.array()
        self._follow_channels()
        filters = self.filters.of(operands)
        [scratch] = self.engine.workspaces(self._kernel.scratch_size)
        self._kernel(source, target, filters, scratch)


class WinogradGradientCall(FilterGradientCall):
    """The gradients of weights and bias over tiles.

    Args:
        engine: The engine.
        tiling: The convolution.
        operands: Its operands.
        images: Where the input's lie, and the output's gradient.
    """

    def __init__(
        self,
        engine: Engine,
        tiling: WinogradSchedule,
        operands: GradientOperands,
        images: tuple[Images, Images],
    ) -> None:
        self.tiling, self._images = tiling, images
        super().__init__(engine, operands, tiling.code)

    @cached_property
    def _kernel(self) -> WinogradGradient | StridedGradient:
        from demitasse.backends.kernels.winograd.gradient import StridedGradient, WinogradGradient

        of = WinogradGradient if self.tiling.stride == 1 else StridedGradient
        return of(self.tiling, *self._images)

    def _write(
        self, source: np.ndarray, dy: np.ndarray, weight: np.ndarray, bias: np.ndarray | None
    ) -> None:
        from demitasse.backends.kernels.winograd.gradient import StridedGradient

        kernel = self._kernel
        [scratch] = self.engine.workspaces(kernel.scratch_size)
        if isinstance(kernel, StridedGradient):
            kernel(source, dy, weight, bias, scratch)
        else:
            # they are as large as filters at the points, which are nobody's any more by now
            sums = self.engine.scratch_for(Arg.WEIGHTS, kernel.sums_size)
            kernel(source, dy, weight, bias, scratch, sums)
