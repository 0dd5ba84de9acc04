"""Images as planes, and the windows on them: shared code of pooling kernels."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from demitasse.backends import ops
from demitasse.backends.numpy.engine import Engine
from demitasse.backends.numpy.step import NEEDS_BOTTOM, HostStep
from demitasse.backends.step import Declined, Operands, decline_in_place
from demitasse.backends.windows import Shape, Window

__all__ = ["LEAD", "PoolStep"]

LEAD = 2
"""Axes before the spatial ones: images and channels, which pooling does not tell apart."""

BLOCK = 1 << 19
"""Elements of padded planes that are worked on at once, so that they stay in the caches."""


class PoolStep(HostStep[ops.Pool]):
    """Pooling over planes, a block of planes at a time.

    Shapes: bottom (planes, *spatial), top (planes, *positions), with planes = N C.
    """

    def __init__(self, engine: Engine, op: ops.Pool, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_in_place(self.at, NEEDS_BOTTOM)
        if 0 in op.bottom:
            message = "an empty bottom"
            raise Declined(message)
        self.count = math.prod(op.bottom[:LEAD])
        self.spatial, self.positions = op.bottom[LEAD:], op.top[LEAD:]
        self.x_shape, self.y_shape = (self.count, *self.spatial), (self.count, *self.positions)
        self.window = Window(op.kernel, op.stride, op.pad, (1,) * len(op.kernel))
        self.size = self.window.canvas(self.spatial, self.positions)
        self.inside = (slice(None), *self.window.inside(self.spatial))
        self.block = max(1, min(self.count, BLOCK // math.prod(self.size)))

    def blocks(self) -> Iterator[slice]:
        """Cut the planes into blocks."""
        for first in range(0, self.count, self.block):
            yield slice(first, min(first + self.block, self.count))

    def x(self) -> np.ndarray:
        """Return the bottom's planes."""
        planes: np.ndarray = self.at.bottom[0].read().reshape(self.x_shape)
        return planes

    def y(self) -> np.ndarray:
        """Return the top's planes, to be overwritten."""
        planes: np.ndarray = self.at.top[0].buffer().reshape(self.y_shape)
        return planes

    def dx(self) -> np.ndarray:
        """Return the bottom's gradient as planes, to be overwritten."""
        planes: np.ndarray = self.at.bottom[0].diff_buffer().reshape(self.x_shape)
        return planes

    def dy(self) -> np.ndarray:
        """Return the top's gradient as planes."""
        planes: np.ndarray = self.at.top[0].read_diff().reshape(self.y_shape)
        return planes

    def laid(self, planes: np.ndarray, around: float) -> np.ndarray:
        """Return a block of planes with room around it: (block, *size), in C order."""
        if self.size == self.spatial:
            return planes
        canvas = self.scratch("canvas", (len(planes), *self.size))
        canvas.fill(around)
        canvas[self.inside] = planes
        return canvas

    def along(self, axis: int, tap: int) -> tuple[slice, ...]:
        """Return the index of what one tap along one spatial axis sees."""
        return (*(slice(None),) * (axis + 1), self._reach(axis, tap))

    def at_tap(self, tap: Shape) -> tuple[slice, ...]:
        """Return the index of what one tap sees: (block, *positions) of (block, *size)."""
        return (slice(None), *self.window.reach(tap, self.positions))

    def swept(self, axis: int) -> Shape:
        """Return the size of a canvas after pooling along its spatial axes up to ``axis``."""
        return (*self.positions[: axis + 1], *self.size[axis + 1 :])

    def _reach(self, axis: int, tap: int) -> slice:
        stride = self.op.stride[axis]
        return slice(tap, tap + (self.positions[axis] - 1) * stride + 1, stride)
