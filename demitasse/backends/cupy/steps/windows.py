"""What Convolution and Deconvolution share: im2col and cuBLAS, as in Caffe's own engine."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TypeVar

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.backends.cupy.correlation import Correlation
from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.cupy.step import NEEDS_BOTTOM, GpuStep
from demitasse.backends.cupy.sums import ChannelSums
from demitasse.backends.step import Operands, decline_in_place
from demitasse.backends.windows import ConvGeometry

__all__ = ["WindowStep"]

O = TypeVar("O", bound=ops.Conv)  # noqa: E741 - the type of the operation


class WindowStep(GpuStep[O]):
    """An image and a map, one of which is the bottom; several bottoms, one weight, one bias."""

    def __init__(self, engine: Engine, op: O, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_in_place(self.at, NEEDS_BOTTOM)
        samples, axis = math.prod(op.bottom[: op.axis]), op.axis
        self.correlation = Correlation(engine, self.geometry(), op.dtype)
        channels, plane = op.top[axis], math.prod(op.top[axis + 1 :])
        reach = samples * channels * plane
        self.add_channel_sums = ChannelSums(engine, op.dtype, (samples, channels, plane))
        self.add_bias = engine.packs("conv", "add_bias", op.dtype, reach, channels, plane)

    @property
    def backward_code(self) -> str:
        direct = self.correlation.direct and not self.at.param_propagate_down[0]
        return "cuBLAS" if direct else "im2col + cuBLAS"

    @abstractmethod
    def geometry(self) -> ConvGeometry:
        """Return the sizes of image, map and window."""

    def forward(self) -> None:
        at = self.at
        weight = at.params[0].read()
        bias = at.params[1].read() if self.op.bias else None
        for bottom, top in zip(at.bottom, at.top, strict=True):
            x = bottom.read()
            self.compute(x, weight, bias, top.buffer())

    def backward(self) -> None:
        at = self.at
        for bottom, top, wanted in zip(at.bottom, at.top, at.propagate_down, strict=True):
            x, weight, dy = bottom.read(), at.params[0].read(), top.read_diff()
            dw = at.params[0].mutable_gpu_diff() if at.param_propagate_down[0] else None
            self.gradients(x, weight, dy, dw, bottom.diff_buffer() if wanted else None)
            if self.op.bias and at.param_propagate_down[1]:
                self.add_channel_sums(dy, at.params[1].mutable_gpu_diff())

    @abstractmethod
    def compute(self, x: Array, weight: Array, bias: Array | None, y: Array) -> None:
        """Compute a top."""

    @abstractmethod
    def gradients(
        self, x: Array, weight: Array, dy: Array, dw: Array | None, dx: Array | None
    ) -> None:
        """Add to the weight's gradient and compute the bottom's, each where it is not None."""
