"""MAX pooling. The first of equal elements wins; what is not a number never does."""

from __future__ import annotations

import math
from itertools import product

import numpy as np

from demitasse.backends import ops
from demitasse.backends.base import Operands
from demitasse.backends.numpy_kernels.planes import PoolStep
from demitasse.backends.numpy_kernels.scratch import scratch

__all__ = ["GlobalMaxStep", "MaxStep"]

LOWEST = -3.4028234663852886e38
"""The lowest float32: what Caffe starts a maximum with, in double precision too."""

BLOCK = 1 << 16
"""Windows whose gradients are sent home at once."""


class MaxStep(PoolStep):
    """Maximum over windows; for the gradient, the number of each winning tap is kept.

    Taps are counted from 1 in the order of their indices, and 0 says that nothing won. A later tap
    wins only by being larger, so the winner is the largest number among those that ever led.
    """

    def __init__(self, op: ops.Pool, at: Operands) -> None:
        super().__init__(op, at)
        self.taps = list(product(*(range(k) for k in op.kernel)))
        self.tap_dtype = "uint8" if len(self.taps) < 1 << 8 else "uint16"
        self.kept = at.backward or op.tops > 1
        self.disjoint = all(k <= s for k, s in zip(op.kernel, op.stride, strict=True))
        self.block = max(1, BLOCK // math.prod(self.places))
        steps = [math.prod(self.spatial[axis + 1 :]) for axis in range(len(self.spatial))]
        offsets = [sum(t * s for t, s in zip(tap, steps, strict=True)) for tap in self.taps]
        self.offset_of = np.array([0, *offsets], np.intp)
        firsts = np.zeros(self.places, np.intp)
        for axis, step in enumerate(steps):
            first = np.arange(self.places[axis]) * op.stride[axis] - op.pad[axis]
            firsts += (first * step).reshape(-1, *(1,) * (len(steps) - axis - 1))
        self.firsts = firsts

    def forward(self) -> None:
        canvas = self.laid(LOWEST)
        y = self.at.top[0].buffer().reshape(self.y_shape)
        if not self.kept:
            self._largest(canvas, y)
            return
        winner = self.at.saved("winner", self.op.top, self.tap_dtype).buffer()
        winner = winner.reshape(self.y_shape)
        self._largest_and_winner(canvas, y, winner)
        if self.op.tops > 1:
            mask = self.at.top[1].buffer().reshape(self.y_shape)
            mask[...] = self.offset_of[winner] + self.firsts
            mask[winner == 0] = -1

    def backward(self) -> None:
        if not self.at.propagate_down[0]:
            return
        winner = self.at.saved("winner", self.op.top, self.tap_dtype).read().reshape(self.y_shape)
        dy = self.at.top[0].read_diff().reshape(self.y_shape)
        dx = self.at.bottom[0].diff_buffer().reshape(self.x_shape)
        dx.fill(0)
        every = winner.min() > 0
        plane = math.prod(self.spatial)
        home = np.arange(self.block).reshape(-1, *(1,) * len(self.places)) * plane + self.firsts
        for first in range(0, self.count, self.block):
            part = slice(first, min(first + self.block, self.count))
            places = scratch("places", winner[part].shape, "intp")
            np.take(self.offset_of, winner[part], out=places, mode="clip")
            places += home[: part.stop - part.start]
            won = ... if every else winner[part] > 0
            self._send(dx[part].reshape(-1), places[won].reshape(-1), dy[part][won].reshape(-1))

    def _send(self, dx: np.ndarray, places: np.ndarray, dy: np.ndarray) -> None:
        if self.disjoint:
            dx[places] = dy
        else:
            np.add.at(dx, places, dy)

    def _largest(self, canvas: np.ndarray, y: np.ndarray) -> None:
        """Write maxima into ``y``, one axis after the other."""
        values, last = canvas, len(self.places) - 1
        for axis, taps in enumerate(self.op.kernel):
            target = y
            if axis != last:
                target = scratch(f"axis{axis}", self.swept(axis), self.op.dtype)
            np.fmax(values[self.along(axis, 0)], LOWEST, out=target)
            for tap in range(1, taps):
                np.fmax(target, values[self.along(axis, tap)], out=target)
            values = target

    def _largest_and_winner(self, canvas: np.ndarray, y: np.ndarray, winner: np.ndarray) -> None:
        seen = scratch("seen", self.y_shape, self.op.dtype)
        better = scratch("better", self.y_shape, "bool")
        number = scratch("number", self.y_shape, self.tap_dtype)
        y.fill(LOWEST)
        winner.fill(0)
        for i, tap in enumerate(self.taps, start=1):
            seen[...] = canvas[self.at_tap(tap)]
            np.greater(seen, y, out=better)
            np.fmax(seen, y, out=y)
            np.multiply(better, winner.dtype.type(i), out=number)
            np.maximum(winner, number, out=winner)


class GlobalMaxStep(PoolStep):
    """Maximum over whole planes."""

    def forward(self) -> None:
        planes = self.at.bottom[0].read().reshape(self.count, -1)
        place = np.argmax(planes, axis=1)
        best = np.take_along_axis(planes, place[:, np.newaxis], axis=1)[:, 0]
        won = best > LOWEST
        if not won.all():  # something is not a number, or infinitely low
            numbers = np.where(planes > LOWEST, planes, planes.dtype.type(LOWEST))
            place = np.argmax(numbers, axis=1)
            best = np.take_along_axis(numbers, place[:, np.newaxis], axis=1)[:, 0]
            won = best > LOWEST
        self.at.top[0].buffer().reshape(-1)[...] = best
        place[~won] = -1
        self.at.saved("place", (self.count,), "int64").buffer()[...] = place
        if self.op.tops > 1:
            self.at.top[1].buffer().reshape(-1)[...] = place

    def backward(self) -> None:
        if self.at.propagate_down[0]:
            place = self.at.saved("place", (self.count,), "int64").read()
            dx = self.at.bottom[0].diff_buffer().reshape(self.count, -1)
            dx.fill(0)
            won = np.flatnonzero(place >= 0)
            dx[won, place[won]] = self.at.top[0].read_diff().reshape(-1)[won]
