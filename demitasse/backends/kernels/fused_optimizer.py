"""Parameter updates in one pass over memory: w -= v by the formula of the solver.

The formulas are those of array libraries, so the bits are the same.
"""

from collections.abc import Sequence
from itertools import product

import numpy as np

from demitasse.backends.arrays import address
from demitasse.backends.kernels.bound import each_vector
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import RUNTIME, Address, Arguments, Struct
from demitasse.backends.kernels.language.values import (
    FLOAT,
    INT,
    Condition,
    Vector,
    Word,
    chunk,
    maximum,
    minimum,
    root,
)
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.updates import FORMULAS, Piece, Update, UpdateFormula

ALONE = 1 << 16
"""Elements up to which one thread ends before other threads would start."""


class OptimizerFields(Struct):
    """Parameters one behind the other."""

    table: Address
    """Row of each parameter: addresses of weights, gradient and two histories (the first twice if
    there is no second); elements of the parameters before; elements; a number of ``KINDS``."""
    numbers: Address
    """Scale and decay of each parameter, the formula's coefficients, and zeros."""
    parameters: Word
    elements: Word
    """Elements of all parameters."""


COLUMNS = 7
"""Integers of a row of the table."""

NUMBERS = 8
"""Floats that each parameter has in a table of their own: scale, decay, up to 6 coefficients."""

KINDS = {
    kind: number
    for number, kind in enumerate([*product(FORMULAS, ("none", "coupled")), ("Adam", "decoupled")])
}
"""A number for each formula and its kind of weight decay."""


@OptimizerFields.kernel("descent")
def _kernel(k: Kernel, f: OptimizerFields) -> None:
    begin, end = chunk(f.elements, *k.thread())
    with k.loop(f.parameters) as loop:
        *arrays, before, length, kind = k.load_words(f.table + loop.i * (INT * COLUMNS), COLUMNS)
        first = maximum(begin, before) - before
        last = minimum(end, before + length) - before
        arrays = [array + first * FLOAT for array in arrays]
        numbers = f.numbers + loop.i * (NUMBERS * FLOAT)
        values = [k.broadcast(numbers + FLOAT * place) for place in range(NUMBERS)]
        with k.when(first < last), k.cases(kind) as case:
            for (name, decay), number in KINDS.items():
                case(number)
                _update(k, arrays, values, FORMULAS[name], decay, last - first)


def _update(
    k: Kernel, arrays: Sequence[Word], numbers: Sequence[Vector], formula: UpdateFormula,
    decay: str, count: Word,
) -> None:  # fmt: skip
    scale, decay_rate, *others = numbers

    def body(place: Word, some: Condition | None) -> None:
        w, g, *kept = (array + place for array in arrays[: 2 + formula.histories])
        weight, gradient = k.load(w, some), k.load(g, some) * scale
        if decay == "coupled":
            gradient = gradient + weight * decay_rate
        before = [k.load(array, some) for array in kept]
        change, *history = formula.change(root, others, gradient, before)
        if decay == "decoupled":
            change = change + weight * decay_rate
        for value, array in zip((*history, change, weight - change), (*kept, g, w), strict=True):
            k.store(value, array, some)

    each_vector(k, count, body, rare=True)


class FusedOptimizer:
    """w -= v, where v is what a rule makes of scale * g + decay * w and of a history.

    The gradient becomes what was subtracted.
    """

    def __init__(self, tuning: Tuning) -> None:
        self.tuning = tuning
        self._kernel = _kernel(tuning.width)
        self._arguments = Arguments(OptimizerFields.values(parameters=RUNTIME, elements=RUNTIME))

    def __call__(self, pieces: Sequence[Piece], numbers: np.ndarray | None = None) -> None:
        """Update float32 arrays by ``KERNEL_FORMULAS``, with these numbers or those of pieces."""
        own, forms = coefficients([piece.update for piece in pieces])
        first, rows = 0, []
        for piece, form in zip(pieces, forms, strict=True):
            history = [address(array) for array in piece.history]
            ends = address(piece.data), address(piece.diff), history[0], history[-1]
            count = piece.data.shape[0]
            rows.append((*ends, first, count, form))
            first += count
        each: dict[str, int | np.ndarray] = {
            "table": np.array(rows, np.int64),
            "numbers": own if numbers is None else numbers,
            "parameters": len(rows),
            "elements": first,
        }
        threads = self.tuning.threads if first > ALONE else 1
        self._arguments.run(self._kernel, threads, each, needs=pieces)


def coefficients(updates: Sequence[Update]) -> tuple[np.ndarray, tuple[int, ...]]:
    """Return the numbers of each update, and its number of ``KINDS``.

    Shape: (updates, NUMBERS).
    """
    known: dict[int, tuple[list[float], int]] = {}
    for u in updates:
        if id(u) not in known:
            known[id(u)] = _coefficients(u)
    found = [known[id(u)] for u in updates]
    numbers = np.array([row for row, _ in found], np.float32)
    return numbers, tuple([form for _, form in found])


def _coefficients(u: Update) -> tuple[list[float], int]:
    name, decay, decay_rate = u.kind, "coupled", u.decay
    if u.kind == "AdamW":
        name, decay, decay_rate = "Adam", "decoupled", u.rate * u.decay
    own = [float(u.scale), decay_rate, *FORMULAS[name].coefficients(u)]
    return own + [0.0] * (NUMBERS - len(own)), KINDS[name, decay if u.decay else "none"]
