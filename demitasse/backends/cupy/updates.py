"""Parameter updates on the GPU: one kernel launch for all parameters of a net.

The formulas are those of ``demitasse.backends.updates``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress

import numpy as np

from demitasse.backends.arrays import Array
from demitasse.backends.cupy.library.engine import DeviceScalars, Engine
from demitasse.backends.kernel_cache import LRUCache
from demitasse.backends.updates import Piece, Update

UNIT = 4096  # elements that a block works on at a time

FIXED = 9
"""Count of the numbers shared by all parameters. The last two are the scale, and the guard that is
used without another one."""

FIELDS = 6  # columns of the table of units

KEPT = 32
"""Greatest number of cached tables. A solver that clips has two: for its updates and its norm;
a table takes 48 bytes for every 4096 parameters."""


@dataclass(frozen=True)
class Table:
    """A net's parameters as kernels read them: the units of the blocks, (units, 6), int64."""

    units: Array
    numbers: DeviceScalars


class Updates:
    """Updates and norms of all parameters."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: LRUCache[Table] = LRUCache(KEPT)

    def apply(self, pieces: Sequence[Piece]) -> None:
        """Make all updates of one iteration."""
        prepared = self.prepare(pieces)
        prepared.write([piece.update for piece in pieces])
        prepared.queue()

    def prepare(self, pieces: Sequence[Piece]) -> "PreparedUpdate":
        """Return the update of these arrays, for numbers that are given later."""
        wanted = [bool(piece.data.size) for piece in pieces]
        pieces = list(compress(pieces, wanted))
        if not pieces:
            return PreparedUpdate(wanted, None, None)
        common, dtype = pieces[0].update, str(pieces[0].data.dtype)
        parts = [(p.data, p.diff, *p.history, *(None,) * (2 - len(p.history))) for p in pieces]
        table = self._table(parts, dtype)
        numbers = table.numbers.array
        scale, guard = common.scale, common.guard
        if isinstance(scale, (int, float)):  # one of the shared numbers
            scale = numbers[FIXED - 2 : FIXED - 1]
        if guard is None:
            guard = numbers[FIXED - 1 : FIXED]
        count = table.units.shape[0]
        kernel = self._engine.row_blocks("update", common.kind.lower(), dtype, count, UNIT, count)
        launch = partial(kernel, table.units, numbers, scale, guard)
        return PreparedUpdate(wanted, table.numbers, launch)

    def sumsq(self, diffs: Sequence[Array]) -> Array:
        """Return the sum of the squares of all elements. Shapes: each (n,) -> ()."""
        dtype, engine = str(diffs[0].dtype), self._engine
        total = engine.empty(1, dtype)
        parts = [(None, diff, None, None) for diff in diffs if diff.size]
        units = self._table(parts, dtype).units
        count = units.shape[0]
        sums = engine.empty(count, dtype)
        engine.row_blocks("update", "sums_of_squares", dtype, count, UNIT, count)(units, sums)
        engine.row_blocks("update", "sum_of", dtype, 1, count, count)(sums, total)
        return total.reshape(())

    def copier(self, pairs: Sequence[tuple[Array, Array]]) -> Callable[[], None]:
        """Return one launch that copies all arrays: the first of each pair into the second.

        Shapes: (n,), both of a pair and all of one dtype.
        """
        engine, pairs = self._engine, [pair for pair in pairs if pair[0].size]
        if not pairs:
            return lambda: None
        dtype = str(pairs[0][0].dtype)
        parts = [(*map(engine.address, pair), 0, 0, int(pair[0].size)) for pair in pairs]
        units = engine.asarray(_units(parts, np.dtype(dtype).itemsize))
        count = units.shape[0]
        return partial(engine.row_blocks("update", "copies", dtype, count, UNIT, count), units)

    def clip_scale(self, total: Array, limit: float) -> Array:
        """Return the factor that limits the norm of all gradients to ``limit``.

        Shapes: ``total``, the sum of their squares, () -> ().
        """
        dtype = str(total.dtype)
        scale = self._engine.empty(1, dtype)
        self._engine.row_blocks("update", "clip_scale", dtype, 1, 1, float(limit))(total, scale)
        return scale.reshape(())

    def unscale(
        self, total: Array, state: Array, guard: Array | None, limit: float, interval: float
    ) -> tuple[Array, Array]:
        """Return the factor of scaled gradients and a guard; see ``QueuedUpdateKernels``."""
        dtype, numbers = str(total.dtype), (float(limit), interval)
        factors = self._engine.empty(2, dtype)
        launch = self._engine.row_blocks("update", "unscale", dtype, 1, 1, *numbers)
        launch(total, state if guard is None else guard, state, factors)
        return factors[:1].reshape(()), factors[1:].reshape(())

    def _table(self, parts: Sequence[Sequence[Array | None]], dtype: str) -> Table:
        """Return the parameters as a table; kept, since addresses seldom change.

        ``parts`` has the weights, the gradient and two histories of each parameter, or None.
        """
        address = self._engine.address
        sizes = (next(int(array.size) for array in part if array is not None) for part in parts)
        places = tuple(
            (*(0 if array is None else address(array) for array in part), size)
            for part, size in zip(parts, sizes, strict=True)
        )
        key = (dtype, places)  # memory that is freed may come back as another type's
        found = self._known.find(key)
        if found is None:
            units = self._engine.asarray(_units(places, np.dtype(dtype).itemsize))
            numbers = DeviceScalars(self._engine, FIXED + 2 * len(parts), dtype)
            found = self._known.keep(key, Table(units, numbers))
        return found


class PreparedUpdate:
    """One launch that updates the ``wanted`` parameters, or None if none has elements."""

    def __init__(
        self,
        wanted: Sequence[bool],
        numbers: DeviceScalars | None,
        launch: Callable[[], None] | None,
    ) -> None:
        self._wanted, self._numbers, self._launch = wanted, numbers, launch
        self._updates: Sequence[Update] = ()
        self._values: np.ndarray | None = None

    def write(self, updates: Sequence[Update]) -> None:
        """Copy an iteration's numbers to the device, for every parameter in order."""
        if self._numbers is None:
            return
        if self._values is None or updates is not self._updates:
            values = _numbers(list(compress(updates, self._wanted)))
            self._values = np.array(values, self._numbers.array.dtype.name)
            self._updates = updates
        self._numbers.write(self._values)

    def queue(self) -> None:
        """Queue the update, which reads its numbers on the device."""
        if self._launch is not None:
            self._launch()


def _units(parts: Sequence[tuple[int, ...]], width: int) -> np.ndarray:
    """Cut parameters into units: four addresses, 0 for none, elements, and the parameter's index.

    An element has ``width`` bytes. Shape: (units, 6), int64.
    """
    rows = []
    for index, (*addresses, count) in enumerate(parts):
        starts = np.arange(0, count, UNIT, dtype=np.int64)
        table = np.empty((len(starts), FIELDS), np.int64)
        for column, address in enumerate(addresses):
            table[:, column] = address + starts * width if address else 0
        table[:, 4] = np.minimum(UNIT, count - starts)
        table[:, 5] = index
        rows.append(table)
    return np.concatenate(rows) if rows else np.empty((0, FIELDS), np.int64)


def _numbers(updates: Sequence[Update]) -> list[float]:
    """Return an iteration's numbers as the kernels read them, computed in double precision."""
    u = updates[0]
    scale = float(u.scale) if isinstance(u.scale, (int, float)) else 1.0
    numbers = [u.momentum, 1 - u.momentum, 1 + u.momentum, u.decay2, 1 - u.decay2, u.delta]
    numbers += [float(u.l1), scale, 1.0]
    for one in updates:
        rate = one.rate * one.correction if one.kind in {"Adam", "AdamW"} else one.rate
        decay = one.rate * one.decay if one.kind == "AdamW" else one.decay
        numbers += [rate, decay]
    return numbers
