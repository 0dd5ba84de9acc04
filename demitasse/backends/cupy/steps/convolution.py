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
            x, weight, dy = bottom.read(), at.params[0].read(), top.read_diff()
            total = total_of(at.params[0]) if at.param_propagate_down[0] else None
            self.spread(x, weight, dy, total, bottom.diff_buffer() if wanted else None)
            if self.bias and at.param_propagate_down[1]:
                self.add_channel_sums(dy, total_of(at.params[1]))

    def compute(self, x: Array, weight: Array, bias: Array | None, y: Array) -> None:
        """Compute a top."""
        raise NotImplementedError

    def spread(
        self, x: Array, weight: Array, dy: Array, total: Array | None, dx: Array | None
    ) -> None:
        """Add to the weight's gradient and compute the bottom's, each where it is not None."""
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

    def spread(
        self, x: Array, weight: Array, dy: Array, total: Array | None, dx: Array | None
    ) -> None:
        self.correlation.backward(dy, weight, image=x, total=total, spread=dx)


class DeconvStep(_Step):
    """The bottom is the map, the top is the image.

    Shapes: as ``ops.Deconv`` says.
    """

    @classmethod
    def windows(cls, op: ops.Conv) -> Windows:
        return _windows(op, image=op.top, maps=op.bottom)

    def compute(self, x: Array, weight: Array, bias: Array | None, y: Array) -> None:
        self.correlation.backward(x, weight, spread=y)
        if bias is not None:
            self.add_bias(y, bias)

    def spread(
        self, x: Array, weight: Array, dy: Array, total: Array | None, dx: Array | None
    ) -> None:
        self.correlation.backward(x, weight, image=dy, total=total)
        if dx is not None:
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
