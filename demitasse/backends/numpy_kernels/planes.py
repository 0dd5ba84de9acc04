"""What pooling kernels share: images as planes, and where windows lie on them."""

from __future__ import annotations

import math

import numpy as np

from demitasse.backends import ops
from demitasse.backends.base import Operands, Step
from demitasse.backends.numpy_kernels.scratch import scratch

__all__ = ["PoolStep"]

Shape = tuple[int, ...]
LEAD = 2
"""Axes before the spatial ones: images and channels, which pooling does not tell apart."""


class PoolStep(Step):
    """Pooling over planes.

    Shapes: bottom (planes, *spatial), top (planes, *places), with planes = N C.
    """

    def __init__(self, op: ops.Pool, at: Operands) -> None:
        self.op, self.at = op, at
        self.count = math.prod(op.bottom[:LEAD])
        self.spatial, self.places = op.bottom[LEAD:], op.top[LEAD:]
        self.x_shape, self.y_shape = (self.count, *self.spatial), (self.count, *self.places)
        needed = (
            (o - 1) * s + k for o, s, k in zip(self.places, op.stride, op.kernel, strict=True)
        )
        self.size = tuple(
            max(n + 2 * p, room) for n, p, room in zip(self.spatial, op.pad, needed, strict=True)
        )
        self.inside = (
            slice(None),
            *(slice(p, p + n) for n, p in zip(self.spatial, op.pad, strict=True)),
        )

    def lower_backward(self, operands: Operands) -> bool:
        self.at = operands
        return True

    def laid(self, around: float) -> np.ndarray:
        """Return the bottom with room around it: (planes, *size)."""
        x: np.ndarray = self.at.bottom[0].read().reshape(self.x_shape)
        if self.size == self.spatial:
            return x
        canvas = scratch("canvas", (self.count, *self.size), self.op.dtype)
        canvas.fill(around)
        canvas[self.inside] = x
        return canvas

    def along(self, axis: int, tap: int) -> tuple[slice, ...]:
        """Return the index of what one tap along one spatial axis sees."""
        return (*(slice(None),) * (axis + 1), self._reach(axis, tap))

    def at_tap(self, tap: Shape) -> tuple[slice, ...]:
        """Return the index of what one tap sees: (planes, *places) of (planes, *size)."""
        return (slice(None), *(self._reach(axis, t) for axis, t in enumerate(tap)))

    def swept(self, axis: int) -> Shape:
        """Return the canvas's shape with the first spatial axes, up to ``axis``, made places."""
        return (self.count, *self.places[: axis + 1], *self.size[axis + 1 :])

    def _reach(self, axis: int, tap: int) -> slice:
        stride = self.op.stride[axis]
        return slice(tap, tap + (self.places[axis] - 1) * stride + 1, stride)
