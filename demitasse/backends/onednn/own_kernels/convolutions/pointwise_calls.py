"""Calls of pointwise convolutions."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.pointwise.convolution import PointwiseConvolution
from demitasse.backends.kernels.pointwise.gradient import PointwiseGradient
from demitasse.backends.kernels.pointwise.schedule import Parts
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.own_kernels.calls import FilterCall, FilterGradientCall
from demitasse.backends.onednn.steps.conv_operands import ConvOperands, GradientOperands

__all__ = ["PixelsCall", "PixelsGradientCall"]


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
        return PointwiseGradient(*self._images, self._tuning, bias=self.operands.bias is not None)

    def _write(
        self, source: np.ndarray, dy: np.ndarray, weight: np.ndarray, bias: np.ndarray | None
    ) -> None:
        self._kernel(source, dy, weight, bias)
