"""Update rules in a kernel: what is subtracted from weights, and what becomes of the history.

The operations and their rounding are those of the portable formulas, so the bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from demitasse.backends.kernels.language.words import Vector, root

__all__ = ["RULES", "Rule"]


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
