"""Calls of convolutions of small groups of channels."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from demitasse.backends.kernels.grouped.convolution import GroupedConvolution
from demitasse.backends.kernels.grouped.gradient import GroupedGradient
from demitasse.backends.kernels.grouped.schedule import GroupParts
from demitasse.backends.kernels.images import Images
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.own_kernels.calls import ChannelCall, FilterGradientCall
from demitasse.backends.onednn.steps.conv_operands import ConvOperands, GradientOperands

__all__ = ["GroupedCall", "GroupedGradientCall"]


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


class GroupedGradientCall(FilterGradientCall):
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
        self._kernel = GroupedGradient(parts, *images, bias=operands.bias is not None)
        super().__init__(engine, operands, parts.code)

    @property
    def kept(self) -> int:
        return self._kernel.sums.nbytes

    def _write(
        self, source: np.ndarray, dy: np.ndarray, weight: np.ndarray, bias: np.ndarray | None
    ) -> None:
        self._kernel(source, dy, weight, bias)
