"""Calls of the kernels of convolutions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.depthwise.convolution import DepthwiseConvolution
from demitasse.backends.kernels.depthwise.strips import Strips
from demitasse.backends.kernels.direct.banding import Banding
from demitasse.backends.kernels.direct.convolution import DirectConvolution
from demitasse.backends.kernels.direct.gradient import DirectGradient
from demitasse.backends.kernels.grouped.convolution import GroupedConvolution
from demitasse.backends.kernels.grouped.gradient import GroupedGradient
from demitasse.backends.kernels.grouped.parts import GroupParts
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.narrow.convolution import NarrowConvolution
from demitasse.backends.kernels.narrow.lines import Lines
from demitasse.backends.kernels.pointwise.convolution import PointwiseConvolution
from demitasse.backends.kernels.pointwise.parts import Parts
from demitasse.backends.kernels.winograd.convolution import WinogradConvolution
from demitasse.backends.kernels.winograd.filters import Filters
from demitasse.backends.kernels.winograd.gradient import WinogradGradient
from demitasse.backends.kernels.winograd.tiling import Tiling
from demitasse.backends.onednn.copies import Copy
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.own_kernels.calls import (
    ConvCall,
    FilterCall,
    KernelCall,
)
from demitasse.backends.onednn.steps.conv_operands import ConvOperands, GradientOperands
from demitasse.backends.step import Memory
from demitasse.errors import DeviceError

__all__ = [
    "DepthwiseCall",
    "DirectCall",
    "DirectGradientCall",
    "GroupedCall",
    "GroupedGradientCall",
    "NarrowCall",
    "PixelsCall",
    "TiledFilters",
    "UnpackedFilters",
    "WinogradCall",
    "WinogradGradientCall",
]


class TiledFilters:
    """Filters at the points, which follow a parameter or are given.

    Args:
        engine: The engine.
        tiling: The convolution, or that which is the gradient of its input.
        kept: Whether the parameter stays what it is for many passes.
    """

    def __init__(self, engine: Engine, tiling: Tiling, *, kept: bool = False) -> None:
        self._engine, self._tiling = engine, tiling
        self._copy = Copy(Arg.WEIGHTS, tiling.filter_size, self._transform, kept=kept)
        self._given: np.ndarray | None = None

    @cached_property
    def _filters(self) -> Filters:
        return Filters(self._tiling)

    def of(self, operands: ConvOperands) -> np.ndarray:
        """Return them as the parameter is now, or as they were given; to be used at once."""
        if not operands.given:
            return self._copy.of(operands.weight.data_memory, self._engine)
        if self._given is None:
            message = "filters of a convolution were used before they were given"
            raise DeviceError(message)
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


class UnpackedFilters:
    """Filters as the parameter holds them, in C order: those are what the kernel reads."""

    nbytes = 0
    """Bytes that it keeps."""

    def of(self, operands: ConvOperands) -> np.ndarray:
        """Return them as the parameter is now; to be used at once."""
        return operands.weight.data_memory.cpu_data()

    def update(self, weights: np.ndarray) -> None:
        """Refuse weights: the kernel multiplies the parameter's with factors."""
        message = f"{weights.size} weights were given to a convolution that reads its parameter"
        raise DeviceError(message)


class WinogradCall(ConvCall):
    """A convolution over tiles.

    Args:
        engine: The engine.
        tiling: The convolution.
        operands: Its operands.
        images: Where those lie that are read, and those that are written.
        filters: At the points, or in C order where the tiling says that it is unpacked.
        pool: Whether pairs of rows and columns are pooled.
    """

    def __init__(
        self,
        engine: Engine,
        tiling: Tiling,
        operands: ConvOperands,
        images: tuple[Images, Images],
        filters: TiledFilters | UnpackedFilters,
        *,
        pool: bool = False,
    ) -> None:
        self.tiling, self.filters = tiling, filters
        self._images, self._pool = images, pool
        take = filters.update, self._pass_offsets, self._pass_slopes
        super().__init__(engine, operands, tiling.code, *take)

    @cached_property
    def _kernel(self) -> WinogradConvolution:
        then = self.operands.then
        return WinogradConvolution(self.tiling, *self._images, then, pool=self._pool)

    def _pass_offsets(self, offsets: np.ndarray) -> None:
        self._kernel.take_offsets(offsets)

    def _pass_slopes(self, slopes: np.ndarray) -> None:
        self._kernel.take_slopes(slopes)

    @property
    def scale(self) -> Callable[[np.ndarray], None] | None:
        return self._scale if self.tiling.unpacked else None

    def _scale(self, factors: np.ndarray) -> None:
        self._kernel.take_factors(factors)
        self._take_given_offsets()

    @property
    def kept(self) -> int:
        return self.filters.nbytes

    def __call__(self) -> None:
        operands = self.operands
        source, target = operands.source.array(), operands.target.array()
        self._follow_channels()
        filters = self.filters.of(operands)
        [scratch] = self.engine.workspaces(self._kernel.scratch_size)
        self._kernel(source, target, filters, scratch)


class WinogradGradientCall(KernelCall):
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
        tiling: Tiling,
        operands: GradientOperands,
        images: tuple[Images, Images],
    ) -> None:
        self.tiling, self.operands, self._images = tiling, operands, images
        super().__init__(engine, operands.ports, tiling.code)

    @cached_property
    def _kernel(self) -> WinogradGradient:
        return WinogradGradient(self.tiling, *self._images)

    def __call__(self) -> None:
        operands, kernel = self.operands, self._kernel
        source, dy = operands.source.array(), operands.dy.array()
        weight = operands.weight.array()
        bias = operands.bias.array() if operands.bias else None
        scratch, sums = self.engine.workspaces(kernel.scratch_size, kernel.sums_size)
        kernel(source, dy, weight, bias, scratch, sums)
        _finish(operands)


class DirectCall(FilterCall):
    """A direct convolution of few channels.

    Args:
        engine: The engine.
        banding: The convolution, and the pooling after it.
        operands: Its operands; the source is in C order.
        target: Where the output lies.
    """

    def __init__(
        self, engine: Engine, banding: Banding, operands: ConvOperands, target: Images
    ) -> None:
        self._banding, self._target = banding, target
        super().__init__(engine, operands, banding.code, self._pass_weights, self._pass_offsets)

    @cached_property
    def _kernel(self) -> DirectConvolution:
        return DirectConvolution(self._banding, self._target, self.operands.then)

    def _pass_offsets(self, offsets: np.ndarray) -> None:
        self._kernel.take_offsets(offsets)

    def __call__(self) -> None:
        source, target = self.operands.source.array(), self.operands.target.array()
        self._follow()
        [scratch] = self.engine.workspaces(self._kernel.scratch_size)
        self._kernel(source, target, scratch)


class ChannelCall(FilterCall):
    """A convolution whose kernel reads offsets and slopes of channels where they are."""

    @cached_property
    @abstractmethod
    def _kernel(self) -> DepthwiseConvolution | GroupedConvolution | NarrowConvolution: ...

    def __init__(self, engine: Engine, operands: ConvOperands, code: str) -> None:
        take, slopes = self._pass_weights, self._pass_slopes
        super().__init__(engine, operands, code, take, take_slopes=slopes)

    def _pass_slopes(self, slopes: np.ndarray) -> None:
        self._kernel.take_slopes(slopes)

    def __call__(self) -> None:
        source, target = self.operands.source.array(), self.operands.target.array()
        self._follow()
        self._kernel(source, target, self.operands.offsets())


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


class GroupedCall(ChannelCall):
    """A convolution of small groups of channels.

    Args:
        engine: The engine.
        parts: The convolution.
        operands: Its operands.
        images: Where those lie that are read, and those that are written.
        backward: Whether it is the gradient of another's input, whose weights it takes.
    """

    def __init__(
        self,
        engine: Engine,
        parts: GroupParts,
        operands: ConvOperands,
        images: tuple[Images, Images],
        *,
        backward: bool = False,
    ) -> None:
        self._parts, self._images, self._backward = parts, images, backward
        super().__init__(engine, operands, parts.code)

    @cached_property
    def _kernel(self) -> GroupedConvolution:
        return GroupedConvolution(self._parts, *self._images, self.operands.then)

    def _pass_weights(self, weights: np.ndarray) -> None:
        self._kernel.update(weights, backward=self._backward)


class GroupedGradientCall(KernelCall):
    """The gradient of the weights of small groups of channels.

    Args:
        engine: The engine.
        parts: The convolution.
        operands: Its operands.
        images: Where the input's lie, and the output's gradient.
    """

    def __init__(
        self,
        engine: Engine,
        parts: GroupParts,
        operands: GradientOperands,
        images: tuple[Images, Images],
    ) -> None:
        self.operands = operands
        self._kernel = GroupedGradient(parts, *images, bias=operands.bias is not None)
        super().__init__(engine, operands.ports, parts.code)

    @property
    def kept(self) -> int:
        return self._kernel.sums.nbytes

    def __call__(self) -> None:
        operands = self.operands
        source, dy = operands.source.array(), operands.dy.array()
        weight = operands.weight.array()
        bias = operands.bias.array() if operands.bias else None
        self._kernel(source, dy, weight, bias)
        _finish(operands)


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


class PixelsCall(FilterCall):
    """A pointwise convolution.

    Args:
        engine: The engine.
        parts: The convolution.
        operands: Its operands.
        images: Where those lie that are read, and those that are written.
    """

    def __init__(
        self, engine: Engine, parts: Parts, operands: ConvOperands, images: tuple[Images, Images]
    ) -> None:
        self._parts, self._images = parts, images
        super().__init__(engine, operands, parts.code, self._pass_weights)

    @cached_property
    def _kernel(self) -> PointwiseConvolution:
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


class DirectGradientCall(KernelCall):
    """The gradients of weights and bias of a direct convolution.

    Args:
        engine: The engine.
        banding: The convolution.
        operands: Its operands; the source is in C order.
        dy: Where the output's gradient lies.
    """

    def __init__(
        self, engine: Engine, banding: Banding, operands: GradientOperands, dy: Images
    ) -> None:
        self.operands = operands
        self._kernel = DirectGradient(banding, dy, bias=operands.bias is not None)
        super().__init__(engine, operands.ports, self._kernel.code)

    @property
    def kept(self) -> int:
        return self._kernel.sums.nbytes

    def __call__(self) -> None:
        operands = self.operands
        source, dy = operands.source.array(), operands.dy.array()
        weight = operands.weight.array()
        bias = operands.bias.array() if operands.bias else None
        [scratch] = self.engine.workspaces(self._kernel.scratch_size)
        self._kernel(source, dy, weight, bias, scratch)
        _finish(operands)


def _finish(operands: GradientOperands) -> None:
    operands.weight.done()
    if operands.bias:
        operands.bias.done()
