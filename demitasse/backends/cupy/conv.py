"""Convolution and Deconvolution: columns and cuBLAS, as Caffe's own engine did it."""

from __future__ import annotations

import math
from typing import Any

from demitasse.backends import ops
from demitasse.backends.base import Array, Operands, Step
from demitasse.backends.cupy.backend import CupyBackend
from demitasse.backends.cupy.columns import Windows
from demitasse.backends.cupy.correlation import Correlation
from demitasse.backends.cupy.step import DTYPES, EngineStep, total_of

__all__ = ["ConvStep", "DeconvStep"]


class _Step(EngineStep):
    """What both share: several bottoms, one weight, one bias."""

    def __init__(self, backend: Any, op: ops.Conv, operands: Operands) -> None:
        super().__init__(backend, operands)
        samples, axis = math.prod(op.bottom[: op.axis]), op.axis
        self.bias = op.bias
        self.correlation = Correlation(self.engine, self.windows(op), samples)
        maps, places = op.top[axis], math.prod(op.top[axis + 1 :])
        reach = samples * maps * places
        self.add_channel_sums = self.engine.rows(
            *("conv", "add_channel_sums", op.dtype, maps, samples * places),
            *(maps, samples, places),
            reach=reach,
        )
        self.add_bias = self.engine.each("conv", "add_bias", op.dtype, reach, maps, places)

    @classmethod
    def windows(cls, op: ops.Conv) -> Windows:
        """Return the window that slides over the larger side."""
        raise NotImplementedError

    def forward(self) -> None:
        at = self.operands
        weight = at.params[0].read()
        bias = at.params[1].read() if self.bias else None
        for bottom, top in zip(at.bottom, at.top, strict=True):
            x = bottom.read()
            self.compute(x, weight, bias, top.buffer())

    def backward(self) -> None:
        at = self.operands
        for bottom, top, wanted in zip(at.bottom, at.top, at.propagate_down, strict=True):
            x, dy = bottom.read(), top.read_diff()
            if at.param_propagate_down[0]:
                self.add_weight_gradient(x, dy, total_of(at.params[0]))
            if self.bias and at.param_propagate_down[1]:
                self.add_channel_sums(dy, total_of(at.params[1]))
            if wanted:
                self.spread(dy, at.params[0].read(), bottom.diff_buffer())

    def compute(self, x: Array, weight: Array, bias: Array | None, y: Array) -> None:
        """Compute a top."""
        raise NotImplementedError

    def add_weight_gradient(self, x: Array, dy: Array, total: Array) -> None:
        """Add to the weight's gradient."""
        raise NotImplementedError

    def spread(self, dy: Array, weight: Array, dx: Array) -> None:
        """Compute a bottom's gradient."""
        raise NotImplementedError


class ConvStep(_Step):
    """The bottom is the image, the top is the map.

    Shapes: as ``ops.Conv`` says.
    """

    @classmethod
    def windows(cls, op: ops.Conv) -> Windows:
        return _windows(op, image=op.bottom, maps=op.top)

    def compute(self, x: Array, weight: Array, bias: Array | None, y: Array) -> None:
        self.correlation.forward(x, weight, bias, y)

    def add_weight_gradient(self, x: Array, dy: Array, total: Array) -> None:
        self.correlation.add_weight_gradient(x, dy, total)

    def spread(self, dy: Array, weight: Array, dx: Array) -> None:
        self.correlation.transposed(dy, weight, dx)


class DeconvStep(_Step):
    """The bottom is the map, the top is the image.

    Shapes: as ``ops.Deconv`` says.
    """

    @classmethod
    def windows(cls, op: ops.Conv) -> Windows:
        return _windows(op, image=op.top, maps=op.bottom)

    def compute(self, x: Array, weight: Array, bias: Array | None, y: Array) -> None:
        self.correlation.transposed(x, weight, y)
        if bias is not None:
            self.add_bias(y, bias)

    def add_weight_gradient(self, x: Array, dy: Array, total: Array) -> None:
        self.correlation.add_weight_gradient(dy, x, total)

    def spread(self, dy: Array, weight: Array, dx: Array) -> None:
        self.correlation.forward(dy, weight, None, dx)


def _windows(op: ops.Conv, *, image: tuple[int, ...], maps: tuple[int, ...]) -> Windows:
    return Windows(
        dtype=op.dtype,
        group=op.group,
        channels=image[op.axis],
        maps=maps[op.axis],
        size=image[op.axis + 1 :],
        out=maps[op.axis + 1 :],
        kernel=op.kernel,
        stride=op.stride,
        pad=op.pad,
        dilation=op.dilation,
    )


@CupyBackend.lowers(ops.Conv)
def lower(backend: Any, op: ops.Conv, operands: Operands) -> Step | None:
    """Lower any number of axes, groups and dilation; in place the layer's own code runs."""
    if op.dtype not in DTYPES or operands.in_place:
        return None
    return ConvStep(backend, op, operands)


@CupyBackend.lowers(ops.Deconv)
def lower_transposed(backend: Any, op: ops.Deconv, operands: Operands) -> Step | None:
    """Lower any number of axes, groups and dilation; in place the layer's own code runs."""
    if op.dtype not in DTYPES or operands.in_place:
        return None
    return DeconvStep(backend, op, operands)
