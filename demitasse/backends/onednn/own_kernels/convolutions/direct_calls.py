"""Calls of direct convolutions of few channels."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from demitasse.backends.kernels.direct.convolution import DirectConvolution
from demitasse.backends.kernels.direct.gradient import DirectGradient
from demitasse.backends.kernels.direct.schedule import Banding
from demitasse.backends.kernels.images import Images
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.own_kernels.calls import FilterCall, FilterGradientCall
from demitasse.backends.onednn.steps.conv_operands import ConvOperands, GradientOperands

__all__ = ["DirectCall", "DirectGradientCall"]


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


class DirectGradientCall(FilterGradientCall):
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
        self._kernel = DirectGradient(banding, dy, bias=operands.bias is not None)
        super().__init__(engine, operands, self._kernel.code)

    @property
    def kept(self) -> int:
        return self._kernel.sums.nbytes

    def _write(
        self, source: np.ndarray, dy: np.ndarray, weight: np.ndarray, bias: np.ndarray | None
    ) -> None:
        [scratch] = self.engine.workspaces(self._kernel.scratch_size)
        self._kernel(source, dy, weight, bias, scratch)
