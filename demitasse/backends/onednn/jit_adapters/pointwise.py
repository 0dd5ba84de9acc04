"""1x1 convolutions: kernels of a Step, and their calls."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.pointwise import PointwiseSchedule, limits_pay
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.onednn.jit_adapters.calls import (
    ConvKernels,
    ConvOperands,
    FilterCall,
    FilterGradientCall,
    GradientOperands,
    images_of,
)
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout

if TYPE_CHECKING:
    from demitasse.backends.kernels.pointwise.convolution import PointwiseConvolution
    from demitasse.backends.kernels.pointwise.gradient import PointwiseGradient

IMAGE_AXES = 4


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
        if not gains or x is None or y is None or pool:
            return None  # the library's own code is good
        if not (x.is_rows and y.is_rows):
            return None

        return PixelsCall(self.engine, self.parts, operands, (x, y))


class PointwiseGradients(ConvKernels):
    """The gradient of few filters; all else is the library's, and that of windows of more pixels.

    Args:
        engine: The engine.
        x: The input's shape, (N, C, H, W).
        y: The output's shape.
        tuning: The kernel's vectors and threads, and whether it is taken.
    """

    def __init__(self, engine: Engine, x: ops.Shape, y: ops.Shape, tuning: Tuning) -> None:
        super().__init__(engine, x)
        self._y, self._tuning = y, tuning

    def weights(self, operands: GradientOperands) -> PixelsGradientCall | None:
        tuning = self._tuning
        if not tuning.width or tuning.pointwise == "never" or len(self.x) != IMAGE_AXES:
            return None
        from demitasse.backends.kernels.pointwise.gradient import gradient_pays, lies_in_vectors

        if tuning.pointwise == "auto" and not gradient_pays(self.x, self._y, tuning):
            return None
        x, dy = images_of(operands.source.layout), images_of(operands.dy.layout)
        if x is None or dy is None or x.shape[2:] != dy.shape[2:]:
            return None
        if not (lies_in_vectors(x, tuning.width) and lies_in_vectors(dy, tuning.width)):
            return None
        if not _lie_in_vectors(operands.packed.layout, tuning.width):
            return None

        operands = replace(operands, weight=operands.packed)
        return PixelsGradientCall(self.engine, operands, (x, dy), tuning)


def _lie_in_vectors(filters: Layout, width: int) -> bool:
    """Return whether filters lie in blocks of a vector's, each channel after channel."""
    m, c, *_ = filters.shape
    parts = [(0, m // width, c * width), (1, c, width), (0, width, 1)]
    return not filters.plain and list(filters.key[1]) == parts[m == width :]


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


class PixelsGradientCall(FilterGradientCall):
    """The gradients of weights and bias of a pointwise convolution.

    Args:
        engine: The engine.
        operands: Its operands; the weights' gradient in blocks.
        images: Where the input's lie, and the output's gradient.
        tuning: The kernel's vectors and threads.
    """

    def __init__(
        self,
        engine: Engine,
        operands: GradientOperands,
        images: tuple[Images, Images],
        tuning: Tuning,
    ) -> None:
        self._images, self._tuning = images, tuning
        super().__init__(engine, operands, f"pointwise llvm:{tuning.instructions}")

    @cached_property
    def _kernel(self) -> PointwiseGradient:
        from demitasse.backends.kernels.pointwise.gradient import PointwiseGradient

        return PointwiseGradient(*self._images, self._tuning, bias=self.operands.bias is not None)

    def _write(
        self, source: np.ndarray, dy: np.ndarray, weight: np.ndarray, bias: np.ndarray | None
    ) -> None:
        self._kernel(source, dy, weight, bias)
