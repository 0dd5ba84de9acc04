"""MAX and AVE pooling over planes of images."""

import math
from collections.abc import Iterator
from itertools import product

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.backends.numpy.step import NEEDS_BOTTOM, Engine, HostStep
from demitasse.backends.step import Operands, decline_if, decline_in_place
from demitasse.backends.windows import Shape, Window

LEAD = 2  # axes before the spatial ones: images and channels, which pooling does not tell apart

BLOCK = 1 << 19
"""Elements of padded planes that are worked on at once, so that they stay in the caches."""


class PoolStep(HostStep[ops.Pool]):
    """Pooling over planes, a block of planes at a time.

    Shapes: bottom (planes, *spatial), top (planes, *positions), with planes = N C.
    """

    def __init__(self, engine: Engine, op: ops.Pool, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_in_place(self.at, NEEDS_BOTTOM)
        decline_if(0 in op.bottom, "an empty bottom")
        self.count = math.prod(op.bottom[:LEAD])
        self.spatial, self.positions = op.bottom[LEAD:], op.top[LEAD:]
        self.x_shape, self.y_shape = (self.count, *self.spatial), (self.count, *self.positions)
        self.window = Window(op.kernel, op.stride, op.pad, (1,) * len(op.kernel), op.after)
        self.size = self.window.canvas(self.spatial, self.positions)
        self.inside = (slice(None), *self.window.inside(self.spatial))
        self.block = max(1, min(self.count, BLOCK // math.prod(self.size)))

    def blocks(self) -> Iterator[slice]:
        """Cut the planes into blocks."""
        for first in range(0, self.count, self.block):
            yield slice(first, min(first + self.block, self.count))

    def x(self) -> Array:
        """Return the bottom's planes."""
        return self.at.bottom[0].read().reshape(self.x_shape)

    def y(self) -> Array:
        """Return the top's planes, to be overwritten."""
        return self.at.top[0].buffer().reshape(self.y_shape)

    def dx(self) -> Array:
        """Return the bottom's gradient as planes, to be overwritten."""
        return self.at.bottom[0].diff_buffer().reshape(self.x_shape)

    def dy(self) -> Array:
        """Return the top's gradient as planes."""
        return self.at.top[0].read_diff().reshape(self.y_shape)

    def laid(self, planes: np.ndarray, around: float) -> np.ndarray:
        """Return a block of planes with room around it: (block, *size), in C order."""
        if self.size == self.spatial:
            return planes
        canvas = self.scratch("canvas", (len(planes), *self.size))
        canvas.fill(around)
        canvas[self.inside] = planes
        return canvas

    def along(self, axis: int, tap: int) -> tuple[slice, ...]:
        """Return the index of the inputs of one tap along one spatial axis."""
        stride = self.op.stride[axis]
        reach = slice(tap, tap + (self.positions[axis] - 1) * stride + 1, stride)
        return (*(slice(None),) * (axis + 1), reach)

    def join(self, function: np.ufunc, canvas: np.ndarray, y: np.ndarray) -> None:
        """Write into ``y`` what the function makes of each window, one axis after the other."""
        values, last = canvas, len(self.positions) - 1
        for axis, taps in enumerate(self.op.kernel):
            target = y
            if axis != last:
                target = self.scratch(f"axis{axis}", (len(y), *self.swept(axis)))
            joined = values[self.along(axis, 0)]
            for tap in range(1, taps):
                joined = function(joined, values[self.along(axis, tap)], out=target)
            values = joined
        if values is not y:
            y[...] = values

    def swept(self, axis: int) -> Shape:
        """Return the size of a canvas after pooling along its spatial axes up to ``axis``."""
        return (*self.positions[: axis + 1], *self.size[axis + 1 :])


class Phases:
    """Layout of the phases of a plane.

    Attributes:
        size: Size of a phase: all output positions, and room for the later taps of the last window.
        taps: For each tap, in order, its phase and how far along it begins.
        windows: Index of the first tap's positions in (planes, *size).
    """

    def __init__(self, engine: Engine, op: ops.Pool, spatial: Shape, positions: Shape) -> None:
        self.engine = engine
        sides = list(zip(op.kernel, op.stride, strict=True))
        self.dtype = op.dtype
        self.size = tuple(o + (k - 1) // s for o, (k, s) in zip(positions, sides, strict=True))
        residues = list(product(*(range(min(k, s)) for k, s in sides)))
        steps = [math.prod(self.size[axis + 1 :]) for axis in range(len(self.size))]
        self.taps = []
        for tap in product(*(range(k) for k in op.kernel)):
            pairs = [divmod(t, s) for t, s in zip(tap, op.stride, strict=True)]
            shift = sum(far * step for (far, _), step in zip(pairs, steps, strict=True))
            self.taps.append((residues.index(tuple(r for _, r in pairs)), shift))
        self.windows = (slice(None), *(slice(0, o) for o in positions))
        self._copies = [self._copy(residue, op, spatial) for residue in residues]
        self._whole = set(op.stride) == {1} and self.size == spatial and not any(op.pad)

    def lay(self, planes: np.ndarray, around: float) -> list[np.ndarray]:
        """Return the phases of some planes, each as one row.

        Shapes: (planes, *spatial) -> (planes * prod(size),) each.
        """
        if self._whole:
            return [planes.reshape(-1)]
        rows = []
        for i, (target, source) in enumerate(self._copies):
            phase = self.engine.scratch(f"phase{i}", (len(planes), *self.size), self.dtype)
            if phase[target].shape != phase.shape:
                phase.fill(around)
            phase[target] = planes[source]
            rows.append(phase.reshape(-1))
        return rows

    def _copy(
        self, residue: Shape, op: ops.Pool, spatial: Shape
    ) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """Return which elements of a phase come from which elements of a plane."""
        target, source = [slice(None)], [slice(None)]
        for axis, r in enumerate(residue):
            stride, pad = op.stride[axis], op.pad[axis]
            first = -(-max(0, pad - r) // stride)  # of the phase, that is not in the padding
            begin = r + first * stride - pad
            count = min(self.size[axis] - first, -(-(spatial[axis] - begin) // stride))
            count = max(0, count)
            target.append(slice(first, first + count))
            source.append(slice(begin, begin + count * stride, stride))
        return tuple(target), tuple(source)


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
        axes = range(len(self.positions))
        steps = [math.prod(self.spatial[axis + 1 :]) for axis in axes]  # in C order
        offsets = [sum(i * step for i, step in zip(tap, steps, strict=True)) for tap in self.taps]
        self.offset_of = np.array([0, *offsets], np.intp)
        self.firsts = np.zeros(self.positions, np.intp)
        for axis, count in enumerate(self.positions):
            first = np.arange(count) * op.stride[axis] - op.pad[axis]
            self.firsts += (first * steps[axis]).reshape(-1, *(1,) * (len(axes) - axis - 1))

    def forward(self) -> None:
        x, y = self.x(), self.y()
        if not self.kept:
            for block in self.blocks():
                self.join(np.fmax, self.laid(x[block], ops.LOWEST), y[block])
                np.fmax(y[block], ops.LOWEST, out=y[block])
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
            target, places = dx[block].reshape(-1), positions[won].reshape(-1)
            if self.disjoint:
                target[places] = dy[block][won].reshape(-1)
            else:
                np.add.at(target, places, dy[block][won].reshape(-1))

    def _positions(self, winner: np.ndarray, firsts: np.ndarray) -> np.ndarray:
        """Return where the winning elements lie, given where the windows' first ones do."""
        positions: np.ndarray = self.scratch("positions", winner.shape, "intp")
        np.take(self.offset_of, winner, out=positions, mode="clip")
        positions += firsts
        return positions

    def _find(self, canvas: np.ndarray, y: np.ndarray, winner: np.ndarray) -> None:
        """Write maxima and winners, tap by tap."""
        seen = self.scratch("seen", y.shape)
        better = self.scratch("better", y.shape, "bool")
        number = self.scratch("number", y.shape, self.tap_dtype)
        y.fill(ops.LOWEST)
        winner.fill(0)
        for i, tap in enumerate(self.taps, start=1):
            seen[...] = canvas[(slice(None), *self.window.reach(tap, self.positions))]
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
    seen: Array, number: int, best: Array, winner: Array, better: Array, room: Array
) -> None:
    """Take the elements under tap ``number`` where they are larger than the maximum so far."""
    np.greater(seen, best, out=better)
    np.fmax(seen, best, out=best)
    np.multiply(better, winner.dtype.type(number), out=room)
    np.maximum(winner, room, out=winner)


class AverageStep(PoolStep):
    """Mean over windows, divided by their part on image and pads."""

    def __init__(self, engine: Engine, op: ops.Pool, at: Operands) -> None:
        super().__init__(engine, op, at)
        divisors = self.window.divisors(self.spatial, self.positions, pads=op.counts_pads)
        self.divisor = divisors.astype(op.dtype)

    def forward(self) -> None:
        x, y = self.x(), self.y()
        for block in self.blocks():
            self.join(np.add, self.laid(x[block], 0), y[block])
            y[block] /= self.divisor

    def backward(self) -> None:
        if not self.at.propagate_down[0]:
            return
        dx, dy = self.dx(), self.dy()
        for block in self.blocks():
            share = self.scratch("share", dy[block].shape)
            np.divide(dy[block], self.divisor, out=share)
            self._spread(share, dx[block])

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


MOST_TAPS = 1 << 14  # larger windows, of which there are few, run the portable code


def pool(engine: Engine, op: ops.Pool, at: Operands) -> PoolStep:
    """Return the Step for MAX or AVE pooling."""
    decline_if(op.method == "STOCHASTIC", "STOCHASTIC; numpy's Steps are for MAX and AVE")
    pads = (*op.pad, *(op.after or ()))
    whole = op.kernel == op.bottom[LEAD:] and not any(pads) and set(op.top[LEAD:]) == {1}
    if op.method == "AVE":
        return GlobalAverageStep(engine, op, at) if whole else AverageStep(engine, op, at)
    if whole:
        return GlobalMaxStep(engine, op, at)
    taps = math.prod(op.kernel)
    decline_if(taps > MOST_TAPS, f"windows of {taps} elements; numpy's Step takes {MOST_TAPS}")
    return MaxStep(engine, op, at)
