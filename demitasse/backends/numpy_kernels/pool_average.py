"""AVE pooling: sums along one axis after the other."""

from __future__ import annotations

import math

import numpy as np

from demitasse.backends import ops
from demitasse.backends.base import Operands
from demitasse.backends.numpy_kernels.planes import PoolStep
from demitasse.backends.numpy_kernels.scratch import scratch

__all__ = ["AverageStep", "GlobalAverageStep"]


class AverageStep(PoolStep):
    """Mean over windows, divided by their part on image and pads."""

    def __init__(self, op: ops.Pool, at: Operands) -> None:
        super().__init__(op, at)
        divisor = np.ones(self.places, op.dtype)
        for axis, (n, k, s, p) in enumerate(
            zip(self.spatial, op.kernel, op.stride, op.pad, strict=True)
        ):
            first = np.arange(self.places[axis]) * s - p
            length = np.minimum(first + k, n + p) - first
            divisor *= length.reshape(-1, *(1,) * (len(self.places) - axis - 1)).astype(op.dtype)
        # an empty window is 0 / 0; said with a divisor that is no number, it raises no warning
        divisor[divisor == 0] = math.nan
        self.divisor = divisor

    def forward(self) -> None:
        values, last = self.laid(0), len(self.places) - 1
        y = self.at.top[0].buffer().reshape(self.y_shape)
        for axis, taps in enumerate(self.op.kernel):
            target = y
            if axis != last:
                target = scratch(f"axis{axis}", self.swept(axis), self.op.dtype)
            target[...] = values[self.along(axis, 0)]
            for tap in range(1, taps):
                target += values[self.along(axis, tap)]
            values = target
        y /= self.divisor

    def backward(self) -> None:
        if not self.at.propagate_down[0]:
            return
        dx = self.at.bottom[0].diff_buffer().reshape(self.x_shape)
        share = scratch("share", self.y_shape, self.op.dtype)
        np.divide(self.at.top[0].read_diff().reshape(self.y_shape), self.divisor, out=share)
        for axis in reversed(range(len(self.places))):
            wider = dx
            if axis or self.size != self.spatial:
                wider = scratch(f"axis{axis}", self.swept(axis - 1), self.op.dtype)
            wider.fill(0)
            for tap in range(self.op.kernel[axis]):
                wider[self.along(axis, tap)] += share
            share = wider
        if share is not dx:
            dx[...] = share[self.inside]


class GlobalAverageStep(PoolStep):
    """Mean over whole planes."""

    def forward(self) -> None:
        planes = self.at.bottom[0].read().reshape(self.count, -1)
        y = self.at.top[0].buffer().reshape(-1)
        np.add.reduce(planes, axis=1, out=y)
        y /= planes.shape[1]

    def backward(self) -> None:
        if self.at.propagate_down[0]:
            dx = self.at.bottom[0].diff_buffer().reshape(self.count, -1)
            dy = self.at.top[0].read_diff().reshape(-1, 1)
            np.divide(dy, dx.shape[1], out=dx)
