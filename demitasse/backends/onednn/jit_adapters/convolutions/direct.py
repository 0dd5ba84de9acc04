"""Direct convolutions of few channels: kernels of a Step, and their calls."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse.backends import ops
from demitasse.backends.kernels.few_inputs.schedule import DirectSchedule
from demitasse.backends.kernels.images import Images
from demitasse.backends.onednn.arguments import OutputArg
from demitasse.backends.onednn.jit_adapters.calls import FilterCall, FilterGradientCall
from demitasse.backends.onednn.jit_adapters.convolutions.interface import ConvKernels
from demitasse.backends.onednn.jit_adapters.images import images_in_vectors
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.steps.conv_operands import ConvOperands, GradientOperands

if TYPE_CHECKING:
    from demitasse.backends.kernels.few_inputs.convolution import DirectConvolution

__all__ = ["DirectCall", "DirectGradientCall", "DirectKernels"]


class DirectKernels(ConvKernels):
    """Kernels of direct convolution, which reads images in C order.

    Args:
        engine: The engine.
        x: The input's shape, (N, C, H, W).
        banding: How it is divided.

    Attributes:
        replaces_copies: Whether the library multiplies matrices made of copied windows here, as
            where an image has more padding than a window is wide; the kernels run then.
    """

    takes_slopes = False

    def __init__(self, engine: Engine, x: ops.Shape, banding: DirectSchedule) -> None:
        super().__init__(engine, x)
        self.banding, self.replaces_copies = banding, False
        self.pads_filters = banding.pads

    def forward(self, operands: ConvOperands, pool: ops.Pool | None) -> DirectCall | None:
        if not (pool or self.banding.pads or self.replaces_copies):
            return None  # the library's own code is good
        target = operands.target
        if pool:  # without gradients; those would read it in the layout of before
            target = _as_it_is_read(operands, self.banding.width)
        y = images_in_vectors(target.layout, self.banding.width)
        if y is None:
            return None

        banding = replace(self.banding, pool=pool)
        operands = replace(operands, source=self._plain(operands.source), target=target)
        return DirectCall(self.engine, banding, operands, y)

    def weights(self, operands: GradientOperands) -> DirectGradientCall | None:
        y = images_in_vectors(operands.dy.layout, self.banding.width)
        if y is None:
            return None

        operands = replace(operands, source=self._plain(operands.source))
        return DirectGradientCall(self.engine, self.banding, operands, y)


def _as_it_is_read(operands: ConvOperands, width: int) -> OutputArg:
    """Return the target in the layout that the blob's last reader prefers, if that fits."""
    target = operands.target
    wished: Any = next(reversed(operands.layouts.preferred(target.memory)), target.layout)
    if wished.shape != target.layout.shape or not images_in_vectors(wished, width):
        return target
    return OutputArg(Arg.DST, target.blob, wished)


class DirectCall(FilterCall):
    """A direct convolution of few channels.

    Args:
        engine: The engine.
        banding: The convolution, and the pooling after it.
        operands: Its operands; the source is in C order.
        target: Where the output lies.
    """

    def __init__(
        self, engine: Engine, banding: DirectSchedule, operands: ConvOperands, target: Images
    ) -> None:
        self._banding, self._target = banding, target
        super().__init__(engine, operands, banding.code, self._pass_weights, self._pass_offsets)

    @cached_property
    def _kernel(self) -> DirectConvolution:
        from demitasse.backends.kernels.few_inputs.convolution import DirectConvolution

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
        self, engine: Engine, banding: DirectSchedule, operands: GradientOperands, dy: Images
    ) -> None:
        from demitasse.backends.kernels.few_inputs.gradient import DirectGradient

        self._kernel = DirectGradient(banding, dy, bias=operands.bias is not None)
        super().__init__(engine, operands, self._kernel.code)

    @property
    def kept_bytes(self) -> int:
        return self._kernel.sums.nbytes

    def _write(
        self, source: np.ndarray, dy: np.ndarray, weight: np.ndarray, bias: np.ndarray | None
    ) -> None:
        [scratch] = self.engine.workspaces(self._kernel.scratch_size)
        self._kernel(source, dy, weight, bias, scratch)
