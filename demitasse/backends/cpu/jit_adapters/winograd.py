"""Winograd convolutions: kernels of a Step, their calls, and filters."""

from __future__ import annotations

from functools import cache, cached_property
from typing import TYPE_CHECKING

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.cpu.arguments import CachedReorder
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.jit_adapters import calls
from demitasse.backends.cpu.layout import Layout
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.winograd import WinogradSchedule
from demitasse.backends.step import Memory
from demitasse.errors import DeviceError, ErrorCode

if TYPE_CHECKING:
    from demitasse.backends.kernels.winograd.convolution import WinogradConvolution
    from demitasse.backends.kernels.winograd.filters import Filters
    from demitasse.backends.kernels.winograd.gradient import WinogradGradient


class WinogradKernels(calls.ConvKernels):
    """Kernels of Winograd's filtering."""

    def __init__(
        self, engine: Engine, x: ops.Shape, tiling: WinogradSchedule, *, training: bool
    ) -> None:
        super().__init__(engine, x)
        self.tiling, self._training = tiling, training
        self._filters: TransformedFilters | None = None

    def within(self, x: Layout, y: Layout) -> calls.ConvKernels:
        width = self.tiling.width
        if not (calls.images_in_vectors(x, width) and calls.images_in_vectors(y, width)):
            why = f"the layouts of the images have no blocks of {width} channels"
            return calls.ConvKernels(self.engine, self.x, why=(why,))
        self._filters = self._transformed()
        return self

    def _transformed(self) -> TransformedFilters:
        return TransformedFilters(self.engine, self.tiling, kept=not self._training)

    def forward(self, operands: calls.ConvOperands) -> WinogradCall | None:
        tiling = self.tiling
        ends = operands.source.layout, operands.target.layout
        x, y = (calls.images_in_vectors(layout, tiling.width) for layout in ends)
        if x is None or y is None:
            return None

        filters = None if operands.external_weights else self._filters
        filters = filters or self._transformed()
        return WinogradCall(self.engine, tiling, operands, (x, y), filters)

    def weights(self, operands: calls.GradientOperands) -> calls.FilterGradientCall | None:
        engine, tiling, arguments = self.engine, self.tiling, (operands.source, operands.dy)
        x, y = (calls.images_in_vectors(argument.layout, tiling.width) for argument in arguments)
        if x is None or y is None:
            return None

        @cache
        def kernel() -> WinogradGradient:
            from demitasse.backends.kernels.winograd.gradient import WinogradGradient

            return WinogradGradient(tiling, x, y)

        def write(
            source: np.ndarray, dy: np.ndarray, weight: np.ndarray, bias: np.ndarray | None
        ) -> None:
            [scratch] = engine.workspaces(kernel().scratch_size)
            # the memory of the transformed filters, which are out of use by now
            sums = engine.scratch_for("weights", kernel().sums_size)
            kernel()(source, dy, weight, bias, scratch, sums)

        return calls.FilterGradientCall(engine, operands, tiling.code, write)

    def data(self, operands: calls.ConvOperands) -> WinogradCall | None:
        """Return the gradient of the input: a convolution of the output's with turned filters."""
        turned = self.tiling.backward
        ends = operands.source.layout, operands.target.layout
        x, y = (calls.images_in_vectors(layout, turned.width) for layout in ends)
        if x is None or y is None:
            return None

        filters = TransformedFilters(self.engine, turned)
        return WinogradCall(self.engine, turned, operands, (x, y), filters)


class TransformedFilters:
    """Filters at the points, which follow a parameter or are given.

    Args:
        kept: Whether the parameter stays what it is for many passes.
    """

    def __init__(self, engine: Engine, tiling: WinogradSchedule, *, kept: bool = False) -> None:
        self._engine, self._tiling = engine, tiling
        self._copy = CachedReorder("weights", tiling.filter_size, self._transform, kept=kept)
        self._given: np.ndarray | None = None

    @cached_property
    def _filters(self) -> Filters:
        from demitasse.backends.kernels.winograd.filters import Filters

        return Filters(self._tiling)

    def of(self, operands: calls.ConvOperands) -> np.ndarray:
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


class WinogradCall(calls.PackedConvCall):
    """A convolution over tiles."""

    def __init__(
        self,
        engine: Engine,
        tiling: WinogradSchedule,
        operands: calls.ConvOperands,
        images: tuple[Images, Images],
        filters: TransformedFilters,
    ) -> None:
        self.tiling, self.filters = tiling, filters

        def make() -> WinogradConvolution:
            from demitasse.backends.kernels.winograd.convolution import WinogradConvolution

            return WinogradConvolution(tiling, *images, operands.then)

        super().__init__(engine, operands, tiling.code, make)

    @property
    def kept_bytes(self) -> int:
        return self.filters.nbytes

    def _take(self, weights: np.ndarray) -> None:
        self.filters.update(weights)

    def __call__(self) -> None:
        operands = self.operands
        source, target = operands.source.array(), operands.target.array()
        self._follow_channels()
        filters = self.filters.of(operands)
        self.kernel(source, target, filters, *self.scratch())
