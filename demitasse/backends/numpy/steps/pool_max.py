"""MAX pooling. The first of equal elements wins; NaN never does."""

from __future__ import annotations

import math

import numpy as np

from demitasse.backends import ops
from demitasse.backends.numpy.engine import Engine
from demitasse.backends.numpy.phases import Phases
from demitasse.backends.numpy.planes import PoolStep
from demitasse.backends.step import Operands

__all__ = ["GlobalMaxStep", "MaxStep"]


class MaxStep(PoolStep):
    """Maximum over windows; for the gradient, the number of each winning tap is kept.

    Taps are counted from 1 in the order of their indices, and 0 says that nothing won. A later tap
    wins only if its element is larger, so the winner is the last tap that raised the maximum.
    """

    def __init__(self, engine: Engine, op: ops.Pool, at: Operands) -> None:
        super().__init__(engine, op, at)
        self.taps = self.window.taps()
        self.tap_dtype = "uint8" if len(self.taps) < 1 << 8 else "uint16"
        self.kept = at.backward or op.tops > 1
        self.disjoint = all(k <= s for k, s in zip(op.kernel, op.stride, strict=True))
        self.phases = None if self.disjoint else Phases(engine, op, self.spatial, self.positions)
        offsets = [_place(tap, self.spatial) for tap in self.taps]
        self.offset_of = np.array([0, *offsets], np.intp)
        firsts = np.zeros(self.positions, np.intp)
        for axis, count in enumerate(self.positions):
            first = np.arange(count) * op.stride[axis] - op.pad[axis]
            step = math.prod(self.spatial[axis + 1 :])
            firsts += (first * step).reshape(-1, *(1,) * (len(self.positions) - axis - 1))
        self.firsts = firsts

    def forward(self) -> None:
        x, y = self.x(), self.y()
        if not self.kept:
            for block in self.blocks():
                self._largest(self.laid(x[block], ops.LOWEST), y[block])
            return
        winner = self.at.saved("winner", self.op.top, self.tap_dtype).buffer()
        winner = winner.reshape(self.y_shape)
        mask = self.at.top[1].buffer().reshape(self.y_shape) if self.op.tops > 1 else None
        for block in self.blocks():
            if self.phases is None:
                self._find(self.laid(x[block], ops.LOWEST), y[block], winner[block])
            else:
                self._find_in(self.phases, x[block], y[block], winner[block])
            if mask is not None:
                mask[block] = self._positions(winner[block], self.firsts)
                mask[block][winner[block] == 0] = -1

    def backward(self) -> None:
        if not self.at.propagate_down[0]:
            return
        winner = self.at.saved("winner", self.op.top, self.tap_dtype).read().reshape(self.y_shape)
        dy, dx = self.dy(), self.dx()
        dx.fill(0)
        every = winner.min() > 0
        plane = math.prod(self.spatial)
        home = np.arange(self.block).reshape(-1, *(1,) * len(self.positions)) * plane + self.firsts
        for block in self.blocks():
            numbers = winner[block]
            positions = self._positions(numbers, home[: len(numbers)])
            won = ... if every else numbers > 0
            self._send(
                dx[block].reshape(-1), positions[won].reshape(-1), dy[block][won].reshape(-1)
            )

    def _positions(self, winner: np.ndarray, firsts: np.ndarray) -> np.ndarray:
        """Return where the winning elements lie, given where the windows' first ones do."""
        positions: np.ndarray = self.scratch("positions", winner.shape, "intp")
        np.take(self.offset_of, winner, out=positions, mode="clip")
        positions += firsts
        return positions

    def _send(self, dx: np.ndarray, positions: np.ndarray, dy: np.ndarray) -> None:
        if self.disjoint:
            dx[positions] = dy
        else:
            np.add.at(dx, positions, dy)

    def _largest(self, canvas: np.ndarray, y: np.ndarray) -> None:
        """Write maxima into ``y``, one axis after the other."""
        values, last = canvas, len(self.positions) - 1
        for axis, taps in enumerate(self.op.kernel):
            target = y
            if axis != last:
                target = self.scratch(f"axis{axis}", (len(y), *self.swept(axis)))
            np.fmax(values[self.along(axis, 0)], ops.LOWEST, out=target)
            for tap in range(1, taps):
                np.fmax(target, values[self.along(axis, tap)], out=target)
            values = target

    def _find(self, canvas: np.ndarray, y: np.ndarray, winner: np.ndarray) -> None:
        """Write maxima and winners, tap by tap."""
        seen = self.scratch("seen", y.shape)
        better = self.scratch("better", y.shape, "bool")
        number = self.scratch("number", y.shape, self.tap_dtype)
        y.fill(ops.LOWEST)
        winner.fill(0)
        for i, tap in enumerate(self.taps, start=1):
            seen[...] = canvas[self.at_tap(tap)]
            _challenge(seen, i, y, winner, better, number)

    def _find_in(
        self, phases: Phases, planes: np.ndarray, y: np.ndarray, winner: np.ndarray
    ) -> None:
        """Write maxima and winners of every element of a phase, as if each were an output."""
        rows = phases.lay(planes, ops.LOWEST)
        count = rows[0].size - phases.taps[-1][1]
        best = self.scratch("seen", (len(planes), *phases.size))
        found = self.scratch("found", best.shape, self.tap_dtype)
        better = self.scratch("better", (count,), "bool")
        number = self.scratch("number", (count,), self.tap_dtype)
        best_row, found_row = best.reshape(-1)[:count], found.reshape(-1)[:count]
        best_row.fill(ops.LOWEST)
        found_row.fill(0)
        for i, (phase, shift) in enumerate(phases.taps, start=1):
            _challenge(rows[phase][shift : shift + count], i, best_row, found_row, better, number)
        y[...] = best[phases.windows]
        winner[...] = found[phases.windows]


class GlobalMaxStep(PoolStep):
    """Maximum over whole planes."""

    def forward(self) -> None:
        planes = self.x().reshape(self.count, -1)
        place = np.argmax(planes, axis=1)
        best = np.take_along_axis(planes, place[:, np.newaxis], axis=1)[:, 0]
        won = best > ops.LOWEST
        if not won.all():  # something is not a number, or infinitely low
            numbers = np.where(planes > ops.LOWEST, planes, planes.dtype.type(ops.LOWEST))
            place = np.argmax(numbers, axis=1)
            best = np.take_along_axis(numbers, place[:, np.newaxis], axis=1)[:, 0]
            won = best > ops.LOWEST
        self.y().reshape(-1)[...] = best
        place[~won] = -1
        self.at.saved("place", (self.count,), "int64").buffer()[...] = place
        if self.op.tops > 1:
            self.at.top[1].buffer().reshape(-1)[...] = place

    def backward(self) -> None:
        if self.at.propagate_down[0]:
            place = self.at.saved("place", (self.count,), "int64").read()
            dx = self.dx().reshape(self.count, -1)
            dx.fill(0)
            won = np.flatnonzero(place >= 0)
            dx[won, place[won]] = self.dy().reshape(-1)[won]


def _challenge(
    seen: np.ndarray,
    number: int,
    best: np.ndarray,
    winner: np.ndarray,
    better: np.ndarray,
    room: np.ndarray,
) -> None:
    """Take the elements under tap ``number`` where they are larger than the maximum so far."""
    np.greater(seen, best, out=better)
    np.fmax(seen, best, out=best)
    np.multiply(better, winner.dtype.type(number), out=room)
    np.maximum(winner, room, out=winner)


def _place(index: tuple[int, ...], shape: tuple[int, ...]) -> int:
    """Return the index of an element in an array in C order."""
    return sum(i * math.prod(shape[axis + 1 :]) for axis, i in enumerate(index))
