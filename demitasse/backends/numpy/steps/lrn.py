"""LRN, image by image, so that its passes stay in the caches."""

from __future__ import annotations

import numpy as np

from demitasse.backends import ops
from demitasse.backends.numpy.engine import Engine
from demitasse.backends.numpy.step import NEEDS_BOTTOM, HostStep
from demitasse.backends.step import Operands, decline_in_place

__all__ = ["LRNStep"]


class LRNStep(HostStep[ops.LRN]):
    """y = x scale^-beta, scale = k + rate * (sum of squares of the neighbours).

    Shapes: (N, C, H, W); one image is (C, H, W).
    """

    def __init__(self, engine: Engine, op: ops.LRN, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_in_place(self.at, NEEDS_BOTTOM)
        self.axes = (0,) if op.region == "ACROSS_CHANNELS" else (1, 2)
        self.rate = op.alpha / op.size ** len(self.axes)
        self.image = op.bottom[1:]

    def forward(self) -> None:
        op, at = self.op, self.at
        xs, ys = at.bottom[0].read(), at.top[0].buffer()
        scales = at.saved("scale", op.bottom, op.dtype).buffer() if at.backward else None
        square = self.scratch("square", self.image, op.dtype)
        for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
            scale = self.scratch("scale", self.image, op.dtype) if scales is None else scales[i]
            np.multiply(x, x, out=square)
            self._neighbours(square, scale)
            scale *= self.rate
            scale += op.k
            self._divide(x, scale, y)

    def backward(self) -> None:
        if not self.at.propagate_down[0]:
            return
        op, at = self.op, self.at
        scales = at.saved("scale", op.bottom, op.dtype).read()
        arrays = (at.bottom[0].read(), at.top[0].read(), at.top[0].read_diff(), scales)
        ratio = self.scratch("square", self.image, op.dtype)
        shared = self.scratch("shared", self.image, op.dtype)
        dxs = at.bottom[0].diff_buffer()
        for i, (x, y, dy, scale) in enumerate(zip(*arrays, strict=True)):
            np.multiply(dy, y, out=ratio)
            ratio /= scale
            self._neighbours(ratio, shared)
            shared *= x
            shared *= 2 * self.rate * op.beta
            self._divide(dy, scale, dxs[i])
            dxs[i] -= shared

    def _neighbours(self, values: np.ndarray, out: np.ndarray) -> None:
        """Write each element's sum over its neighbourhood into ``out``; overwrites ``values``."""
        for axis in self.axes:
            if axis != self.axes[0]:
                values[...] = out
            out[...] = values
            before = (slice(None),) * axis
            for shift in range(1, min(self.op.size // 2, values.shape[axis] - 1) + 1):
                late = (*before, slice(shift, None))
                early = (*before, slice(None, -shift))
                out[late] += values[early]
                out[early] += values[late]

    def _divide(self, x: np.ndarray, scale: np.ndarray, out: np.ndarray) -> None:
        """Write x scale^-beta; roots are much faster than powers for the usual beta."""
        if self.op.beta == 0.75:
            root = self.scratch("root", self.image, self.op.dtype)
            np.sqrt(scale, out=root)
            np.sqrt(root, out=out)
            root *= out
            np.divide(x, root, out=out)
        else:
            power = self.scratch("root", self.image, self.op.dtype)
            np.power(scale, -self.op.beta, out=power)
            np.multiply(x, power, out=out)
