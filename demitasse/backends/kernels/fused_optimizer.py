"""Parameter updates in one pass over memory: w -= v by the rule of the solver.

The operations and their rounding are those of the portable formulas, so the bits are the same.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from demitasse.backends.arrays import address
from demitasse.backends.kernels.bound import each_vector, load, store
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
from demitasse.backends.updates import Piece, Update

ALONE = 1 << 16
"""Elements up to which one thread ends before other threads would start."""


Vectors = Sequence[Vector]
Change = tuple[Vector, Vectors]
"""Change to subtract, and the new history."""


class Rule(NamedTuple):
    """Update rule of a solver.

    Attributes:
        formula: Takes the coefficients, a weight, its gradient and its history.
        histories: Number of history arrays.
        numbers: Returns the coefficients of an update.
    """

    formula: Callable[[Vectors, Vector, Vector, Vectors], Change]
    histories: int
    numbers: Callable[[Update], list[float]]


def _sgd(numbers: Vectors, _w: Vector, g: Vector, history: Vectors) -> Change:
    rate, momentum, *_ = numbers
    h = history[0] * momentum + g * rate
    return h, [h]


def _nesterov(numbers: Vectors, _w: Vector, g: Vector, history: Vectors) -> Change:
    rate, momentum, ahead, *_ = numbers
    before = history[0] * momentum
    h = before + g * rate
    return h * ahead - before, [h]


def _adagrad(numbers: Vectors, _w: Vector, g: Vector, history: Vectors) -> Change:
    rate, delta, *_ = numbers
    h = history[0] + g * g
    return g / (root(h) + delta) * rate, [h]


def _rmsprop(numbers: Vectors, _w: Vector, g: Vector, history: Vectors) -> Change:
    rate, delta, *average = numbers[:4]
    h = _averaged(history[0], g * g, average)
    return g / (root(h) + delta) * rate, [h]


def _adadelta(numbers: Vectors, _w: Vector, g: Vector, history: Vectors) -> Change:
    rate, delta, *average = numbers[:4]
    h = _averaged(history[0], g * g, average)
    v = g * root((history[1] + delta) / (h + delta))
    return v * rate, [h, _averaged(history[1], v * v, average)]


def _adam(numbers: Vectors, _w: Vector, g: Vector, history: Vectors) -> Change:
    rate, delta, *averages = numbers[:6]
    h = _averaged(history[0], g, averages[:2])
    k = _averaged(history[1], g * g, averages[2:])
    return h / (root(k) + delta) * rate, [h, k]


def _adamw(numbers: Vectors, w: Vector, g: Vector, history: Vectors) -> Change:
    *rest, decay = numbers
    change, history = _adam(rest, w, g, history)
    return change + w * decay, history


def _averaged(h: Vector, new: Vector, shares: Vectors) -> Vector:
    """Return a running average, given the shares of the old and the new value."""
    kept, fresh = shares
    return h * kept + new * fresh


def _averages(u: Update, *kept: float) -> list[float]:
    """Return the rate, the delta, and of each running average the shares of old and new."""
    return [u.rate, u.delta, *(share for k in kept for share in (k, 1 - k))]


def _of_adam(u: Update) -> list[float]:
    """Return the numbers of Adam, whose averages begin at 0."""
    return [u.rate * u.correction, *_averages(u, u.momentum, u.decay2)[1:]]


RULES: Mapping[str, Rule] = {
    "SGD": Rule(_sgd, 1, lambda u: [u.rate, u.momentum]),
    "Nesterov": Rule(_nesterov, 1, lambda u: [u.rate, u.momentum, 1 + u.momentum]),
    "AdaGrad": Rule(_adagrad, 1, _averages),
    "RMSProp": Rule(_rmsprop, 1, lambda u: _averages(u, u.decay2)),
    "AdaDelta": Rule(_adadelta, 2, lambda u: _averages(u, u.momentum)),
    "Adam": Rule(_adam, 2, _of_adam),
    "AdamW": Rule(_adamw, 2, lambda u: [*_of_adam(u), u.rate * u.decay]),
}
"""By the type of the solver."""


class OptimizerFields(Struct):
    """Parameters one behind the other."""

    table: Address
    """Row of each parameter: addresses of weights, gradient and two histories (the first twice if
    there is no second); elements of the parameters before; elements; a number of ``KINDS``."""
    numbers: Address
    """Scale and decay of each parameter, the rule's coefficients, and zeros."""
    parameters: Word
    elements: Word
    """Elements of all parameters."""


COLUMNS = 7
"""Integers of a row of the table."""

NUMBERS = 9
"""Floats that each parameter has in a table of their own: scale, decay, and up to 7 of its rule."""

KINDS = {pair: n for n, pair in enumerate(product(RULES, (False, True)))}
"""A number for each rule without decay and with it."""


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
            for (rule, decays), number in KINDS.items():
                case(number)
                _update(k, arrays, values, RULES[rule], last - first, decays=decays)


def _update(
    k: Kernel, arrays: Sequence[Word], numbers: Vectors, rule: Rule, count: Word, *, decays: bool
) -> None:
    scale, decay, *others = numbers

    def body(place: Word, some: Condition | None) -> None:
        w, g, *kept = (array + place for array in arrays[: 2 + rule.histories])
        weight, gradient = load(k, w, some), load(k, g, some) * scale
        if decays:
            gradient = gradient + weight * decay
        before = [load(k, array, some) for array in kept]
        change, history = rule.formula(others, weight, gradient, before)
        for value, array in zip((*history, change, weight - change), (*kept, g, w), strict=True):
            store(k, value, array, some)

    each_vector(k, count, body)


class FusedOptimizer:
    """w -= v, where v is what a rule makes of scale * g + decay * w and of a history.

    The gradient becomes what was subtracted.
    """

    def __init__(self, tuning: Tuning) -> None:
        self.tuning = tuning
        self._kernel = _kernel(tuning.width)
        self._arguments = Arguments(OptimizerFields.values(parameters=RUNTIME, elements=RUNTIME))

    def __call__(self, pieces: Sequence[Piece]) -> None:
        """Update float32 arrays by rules in ``RULES``."""
        numbers = np.zeros((len(pieces), NUMBERS), np.float32)
        first, rows = 0, []
        for place, piece in enumerate(pieces):
            u, history = piece.update, [address(array) for array in piece.history]
            coupled = u.kind != "AdamW"
            rule = u.kind if coupled or u.decay else "Adam"
            own = float(u.scale), u.decay, *RULES[rule].numbers(u)
            numbers[place, : len(own)] = own
            ends = address(piece.data), address(piece.diff), history[0], history[-1]
            count = piece.data.shape[0]
            rows.append((*ends, first, count, KINDS[rule, coupled and u.decay != 0]))
            first += count
        each: dict[str, int | np.ndarray] = {
            "table": np.array(rows, np.int64),
            "numbers": numbers,
            "parameters": len(rows),
            "elements": first,
        }
        threads = self.tuning.threads if first > ALONE else 1
        self._arguments.run(self._kernel, threads, each, needs=pieces)
