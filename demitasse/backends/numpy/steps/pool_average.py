"""AVE pooling: sums along one axis after the other."""

from __future__ import annotations

import math

import numpy as np

from demitasse.backends import ops
from demitasse.backends.numpy.engine import Engine
from demitasse.backends.numpy.planes import PoolStep
from demitasse.backends.step import Operands

__all__ = ["AverageStep", "GlobalAverageStep"]


class AverageStep(PoolStep):
    """Mean over windows, divided by their part on image and pads."""

    def __init__(self, engine: Engine, op: ops.Pool, at: Operands) -> None:
        super().__init__(engine, op, at)
        divisor = np.ones(self.positions, op.dtype)
        for axis, (n, k, s, p) in enumerate(
            zip(self.spatial, op.kernel, op.stride, op.pad, strict=True)
        ):
            first = np.arange(self.positions[axis]) * s - p
            length = np.minimum(first + k, n + p) - first
            divisor *= length.reshape(-1, *(1,) * (len(self.positions) - axis - 1)).astype(op.dtype)
        # an empty window is 0 / 0; a divisor of NaN gives NaN without a warning
        divisor[divisor == 0] = math.nan
        self.divisor = divisor

    def forward(self) -> None:
        x, y = self.x(), self.y()
        for block in self.blocks():
            self._sum(self.laid(x[block], 0), y[block])
            y[block] /= self.divisor

    def backward(self) -> None:
        if not self.at.propagate_down[0]:
            return
        dx, dy = self.dx(), self.dy()
        for block in self.blocks():
            share = self.scratch("share", dy[block].shape)
            np.divide(dy[block], self.divisor, out=share)
            self._spread(share, dx[block])

    def _sum(self, canvas: np.ndarray, y: np.ndarray) -> None:
        """Write sums over windows into ``y``."""
        values, last = canvas, len(self.positions) - 1
        for axis, taps in enumerate(self.op.kernel):
            target = y
            if axis != last:
                target = self.scratch(f"axis{axis}", (len(y), *self.swept(axis)))
            target[...] = values[self.along(axis, 0)]
            for tap in range(1, taps):
                target += values[self.along(axis, tap)]
            values = target

    def _spread(self, share: np.ndarray, dx: np.ndarray) -> None:
        """Write into ``dx`` the sum of the shares of all windows that an element is in."""
        for axis in reversed(range(len(self.positions))):
            wider = dx
            if axis or self.size != self.spatial:
                wider = self.scratch(f"axis{axis}", (len(dx), *self.swept(axis - 1)))
            wider.fill(0)
            for tap in range(self.op.kernel[axis]):
                wider[self.along(axis, tap)] += share
            share = wider
        if share is not dx:
            dx[...] = share[self.inside]


class GlobalAverageStep(PoolStep):
    """Mean over whole planes."""

    def forward(self) -> None:
        planes, y = self.x().reshape(self.count, -1), self.y().reshape(-1)
        np.add.reduce(planes, axis=1, out=y)
        y /= planes.shape[1]

    def backward(self) -> None:
        if self.at.propagate_down[0]:
            dx = self.dx().reshape(self.count, -1)
            np.divide(self.dy().reshape(-1, 1), dx.shape[1], out=dx)
