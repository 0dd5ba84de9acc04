"""Parameter updates in one pass over memory: w -= v by the rule of the solver.

The operations and their rounding are those of the portable formulas, so the bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from demitasse.backends.arrays import address
from demitasse.backends.kernels.language import compiled
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import RUNTIME, Address, Arguments, Struct
from demitasse.backends.kernels.language.words import (
    FLOAT,
    INT,
    Vector,
    Word,
    chunk,
    maximum,
    minimum,
    root,
)
from demitasse.backends.kernels.tuning import Tuning

ALONE = 1 << 16
"""Elements up to which one thread ends before other threads would start."""


class Rule(NamedTuple):
    """Update rules of solvers.

    Attributes:
        formula: Takes the rule's numbers, weights, gradients and history; returns what is
            subtracted, and the new history.
        histories: How many arrays of history there are.
        numbers: How many numbers.
    """

    formula: Callable[
        [Sequence[Vector], Vector, Vector, Sequence[Vector]], tuple[Vector, Sequence[Vector]]
    ]
    histories: int
    numbers: int


Formed = tuple[Vector, Sequence[Vector]]


def _sgd(numbers: Sequence[Vector], w: Vector, g: Vector, history: Sequence[Vector]) -> Formed:
    del w
    rate, momentum = numbers
    h = history[0] * momentum + g * rate
    return h, [h]


def _nesterov(numbers: Sequence[Vector], w: Vector, g: Vector, history: Sequence[Vector]) -> Formed:
    del w
    rate, momentum, ahead = numbers
    before = history[0] * momentum
    h = before + g * rate
    return h * ahead - before, [h]


def _adagrad(numbers: Sequence[Vector], w: Vector, g: Vector, history: Sequence[Vector]) -> Formed:
    del w
    rate, delta = numbers
    h = history[0] + g * g
    return g / (root(h) + delta) * rate, [h]


def _rmsprop(numbers: Sequence[Vector], w: Vector, g: Vector, history: Sequence[Vector]) -> Formed:
    del w
    rate, delta, *average = numbers
    h = _averaged(history[0], g * g, average)
    return g / (root(h) + delta) * rate, [h]


def _adadelta(numbers: Sequence[Vector], w: Vector, g: Vector, history: Sequence[Vector]) -> Formed:
    del w
    rate, delta, *average = numbers
    h = _averaged(history[0], g * g, average)
    v = g * root((history[1] + delta) / (h + delta))
    return v * rate, [h, _averaged(history[1], v * v, average)]


def _adam(numbers: Sequence[Vector], w: Vector, g: Vector, history: Sequence[Vector]) -> Formed:
    del w
    rate, delta, *averages = numbers
    h = _averaged(history[0], g, averages[:2])
    k = _averaged(history[1], g * g, averages[2:])
    return h / (root(k) + delta) * rate, [h, k]


def _adamw(numbers: Sequence[Vector], w: Vector, g: Vector, history: Sequence[Vector]) -> Formed:
    *rest, decay = numbers
    change, history = _adam(rest, w, g, history)
    return change + w * decay, history


def _averaged(h: Vector, new: Vector, shares: Sequence[Vector]) -> Vector:
    """Return a running average, of which one share is kept and another new."""
    kept, fresh = shares
    return h * kept + new * fresh


RULES: Mapping[str, Rule] = {
    "SGD": Rule(_sgd, histories=1, numbers=2),
    "Nesterov": Rule(_nesterov, histories=1, numbers=3),
    "AdaGrad": Rule(_adagrad, histories=1, numbers=2),
    "RMSProp": Rule(_rmsprop, histories=1, numbers=4),
    "AdaDelta": Rule(_adadelta, histories=2, numbers=4),
    "Adam": Rule(_adam, histories=2, numbers=6),
    "AdamW": Rule(_adamw, histories=2, numbers=7),
}
"""By the type of the solver. The numbers of SGD are the rate and the momentum, and 1 + momentum of
Nesterov; those of others the rate, the delta, of each running average the share that is kept and
the one that is new, and the rate times the decay of AdamW."""


class Parameter(NamedTuple):
    """A parameter, its arrays of one length, and the numbers of its update.

    Attributes:
        arrays: Weights, gradient and history; all are overwritten. Shapes: (count,).
        rule: Name of its rule in ``RULES``.
        decays: Whether the decay is added to the gradient.
        numbers: The gradient's scale, the decay, and those of the rule.
    """

    arrays: Sequence[np.ndarray]
    rule: str
    decays: bool
    numbers: Sequence[float]


class OptimizerFields(Struct):
    """Parameters one behind the other."""

    table: Address
    """Address of a row of :class:`_Row`'s integers for each parameter."""
    numbers: Address
    """Address of each parameter's scale and decay, and its rule's numbers, and zeros."""
    parameters: Word
    """Number of elements."""
    elements: Word
    """Elements of all of them."""


class _Row(NamedTuple):
    """A parameter in a kernel.

    Attributes:
        w: Address of the weights.
        g: Address of the gradient.
        h: Address of the history.
        k: Address of the second history; that of the first where there is none.
        first: Elements of the parameters before it.
        length: Its own elements.
        kind: Which of the rules is its own, and whether it decays.
    """

    w: Word
    g: Word
    h: Word
    k: Word
    first: Word
    length: Word
    kind: Word


NUMBERS = 2 + max(rule.numbers for rule in RULES.values())
"""Floats that each parameter has in a table of their own."""

KINDS = {pair: n for n, pair in enumerate(product(RULES, (False, True)))}
"""A number for each rule without decay and with it."""


@cache
def _kernel(width: int) -> int:
    """Return the address of the kernel."""
    name = f"descent{width}"
    return compiled(name, lambda module: _write(module, name, width), name)[name]


def _write(module: Any, name: str, width: int) -> None:
    rest = _part(module, f"{name}_rest", 1)
    whole = _part(module, f"{name}_whole", width)
    k = Kernel(module, name, 1, width, exported=True)
    f = OptimizerFields.read(k)
    begin, end = chunk(f.elements, *k.thread())
    with k.loop(f.parameters) as loop:
        row = _Row(*k.load_words(f.table + loop.i * (INT * len(_Row._fields)), len(_Row._fields)))
        first = maximum(begin, row.first) - row.first
        last = minimum(end, row.first + row.length) - row.first
        with k.when(first < last):
            middle = last - (last - first) % width
            numbers = f.numbers + loop.i * (NUMBERS * FLOAT)
            arrays = row.w, row.g, row.h, row.k, row.kind, numbers
            k.call(whole, *arrays, first * FLOAT, middle * FLOAT)
            k.call(rest, *arrays, middle * FLOAT, last * FLOAT)
    k.done()


def _part(module: Any, name: str, width: int) -> Kernel:
    """Return the kernel of a range of a parameter, of whole vectors of this width."""
    k = Kernel(module, name, 8, width)
    w, g, *history, kind, numbers, begin, end = k.arguments
    values = [k.broadcast(numbers + FLOAT * place) for place in range(NUMBERS)]
    with k.cases(kind) as case:
        for (rule, decays), number in KINDS.items():
            case(number)
            _update(k, (w, g, *history), values, RULES[rule], (begin, end), decays=decays)
    k.done()
    return k


def _update(
    k: Kernel,
    arrays: Sequence[Word],
    numbers: Sequence[Vector],
    rule: Rule,
    part: tuple[Word, Word],
    *,
    decays: bool,
) -> None:
    """Write a loop over the vectors of a range."""
    begin, end = part
    scale, decay, *others = numbers
    with k.loop(end, begin, k.vector_bytes) as loop:
        w, g, *kept = (array + loop.i for array in arrays[: 2 + rule.histories])
        weight, gradient = k.load(w), k.load(g) * scale
        if decays:
            gradient = gradient + weight * decay
        before = [k.load(array) for array in kept]
        change, history = rule.formula(others[: rule.numbers], weight, gradient, before)
        for value, array in zip(history, kept, strict=True):
            k.store(value, array)
        k.store(change, g)
        k.store(weight - change, w)


class FusedOptimizer:
    """w -= v, where v is what a rule makes of scale * g + decay * w and of a history.

    The gradient becomes what was subtracted.

    Args:
        tuning: The kernel's vectors and threads.
    """

    def __init__(self, tuning: Tuning) -> None:
        self.tuning = tuning
        self._kernel = _kernel(tuning.width)
        self._arguments = Arguments(
            OptimizerFields.values(
                table=RUNTIME, numbers=RUNTIME, parameters=RUNTIME, elements=RUNTIME
            )
        )

    def __call__(self, parameters: Sequence[Parameter]) -> None:
        """Update all of them."""
        numbers = np.zeros((len(parameters), NUMBERS), np.float32)
        first, rows = 0, []
        for place, (arrays, rule, decays, own) in enumerate(parameters):
            numbers[place, : len(own)] = own
            w, g, *history = (address(array) for array in arrays)
            count = arrays[0].shape[0]
            kept = history[0], history[-1]
            rows.append((w, g, *kept, first, count, KINDS[rule, decays]))
            first += count
        each: dict[str, int | np.ndarray] = {
            "table": np.array(rows, np.int64),
            "numbers": numbers,
            "parameters": len(rows),
            "elements": first,
        }
        threads = self.tuning.threads if first > ALONE else 1
        self._arguments.run(self._kernel, threads, each, needs=parameters)
