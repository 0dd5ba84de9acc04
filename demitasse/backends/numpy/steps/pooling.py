"""MAX pooling over planes of images."""

import math
import operator

import numpy as np

from demitasse.backends import ops
from demitasse.backends.numpy.step import NEEDS_BOTTOM, Engine, HostStep
from demitasse.backends.step import Operands, decline_if, decline_in_place
from demitasse.backends.windows import Window

LEAD = 2  # axes before the spatial ones: images and channels, which pooling does not tell apart

MOST_TAPS = 1 << 14
"""Elements of a window at most: larger ones, of which there are few, run the portable code."""

BLOCK = 1 << 19
"""Elements of padded planes that are worked on at once, so that they stay in the caches."""


class MaxStep(HostStep[ops.Pool]):
    """Maximum over windows, a block of planes at a time.

    For the gradient, the index in the plane of each window's maximum is kept, -1 for none: the
    first of equal elements, because a later one wins only if it is larger.
    Shapes: bottom (planes, *spatial), top (planes, *positions), with planes = N C.
    """

    def __init__(self, engine: Engine, op: ops.Pool, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_if(op.method != "MAX", f"{op.method}; numpy's Step is for MAX")
        decline_in_place(self.at, NEEDS_BOTTOM)
        decline_if(0 in op.bottom, "an empty bottom")
        taps = math.prod(op.kernel)
        decline_if(taps > MOST_TAPS, f"windows of {taps} elements; numpy's Step takes {MOST_TAPS}")
        count, spatial, positions = math.prod(op.bottom[:LEAD]), op.bottom[LEAD:], op.top[LEAD:]
        self.x_shape, self.y_shape = (count, *spatial), (count, *positions)
        self.window = Window(op.kernel, op.stride, op.pad, (1,) * len(op.kernel), op.after)
        self.size = self.window.canvas(spatial, positions)
        self.inside = (slice(None), *self.window.inside(spatial))
        block = max(1, min(count, BLOCK // math.prod(self.size)))
        self.blocks = [slice(first, first + block) for first in range(0, count, block)]
        self.kept = at.backward or op.tops > 1
        self.disjoint = all(k <= s for k, s in zip(op.kernel, op.stride, strict=True))
        steps = [math.prod(spatial[axis + 1 :]) for axis in range(len(spatial))]
        offsets = [sum(map(operator.mul, tap, steps)) for tap in self.window.taps()]
        self.offsets = np.array([0, *offsets], np.int32)
        self.firsts = np.zeros(positions, np.int32)  # indices of the windows' first elements
        for axis, size in enumerate(positions):
            first = (np.arange(size) * op.stride[axis] - op.pad[axis]) * steps[axis]
            self.firsts += first.reshape(-1, *(1,) * (len(positions) - axis - 1)).astype(np.int32)

    def forward(self) -> None:
        x = self.at.bottom[0].read().reshape(self.x_shape)
        y = self.at.top[0].buffer().reshape(self.y_shape)
        index = None
        if self.kept:
            index = self.at.saved("index", self.op.top, "int32").buffer().reshape(self.y_shape)
        for block in self.blocks:
            self._find(x[block], y[block], None if index is None else index[block])
        if self.op.tops > 1:
            self.at.top[1].buffer().reshape(self.y_shape)[...] = index

    def backward(self) -> None:
        if not self.at.propagate_down[0]:
            return
        index = self.at.saved("index", self.op.top, "int32").read().reshape(self.y_shape)
        dy = self.at.top[0].read_diff().reshape(self.y_shape)
        dx = self.at.bottom[0].diff_buffer().reshape(self.x_shape)
        dx.fill(0)
        for block in self.blocks:
            found, target = index[block], dx[block].reshape(-1)
            planes = np.arange(len(found)).reshape(-1, *(1,) * self.firsts.ndim)
            won = found >= 0
            places = (planes * math.prod(self.x_shape[1:]) + found)[won]
            if self.disjoint:
                target[places] = dy[block][won]
            else:
                np.add.at(target, places, dy[block][won])

    def _find(self, planes: np.ndarray, y: np.ndarray, index: np.ndarray | None) -> None:
        """Write maxima and their indices, tap by tap."""
        canvas = planes
        if self.size != self.x_shape[1:]:
            canvas = self.scratch("canvas", (len(planes), *self.size))
            canvas.fill(ops.LOWEST)
            canvas[self.inside] = planes
        taps = self.window.taps()
        dtype = "uint8" if len(taps) < 1 << 8 else "uint16"
        winner, number = (self.scratch(name, y.shape, dtype) for name in ("winner", "number"))
        better, copy = self.scratch("better", y.shape, "bool"), self.scratch("copy", y.shape)
        y.fill(ops.LOWEST)
        winner.fill(0)  # taps are counted from 1
        for i, tap in enumerate(taps, start=1):
            seen = canvas[(slice(None), *self.window.reach(tap, self.y_shape[1:]))]
            if index is not None:
                copy[...] = seen
                seen = copy
                np.greater(seen, y, out=better)
                np.multiply(better, number.dtype.type(i), out=number)
                np.maximum(winner, number, out=winner)
            np.fmax(seen, y, out=y)
        if index is not None:
            np.take(self.offsets, winner, out=index, mode="clip")
            index += self.firsts
            index[winner == 0] = -1
