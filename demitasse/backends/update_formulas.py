"""Formulas of parameter updates: the change that each type of solver subtracts from the weights.

A formula has operators and square roots alone, so that array libraries and compiled kernels run the
same one. In the formulas g is the gradient (clipped, divided by ``iter_size``, with the decay
added), h and k the history; ``rate`` is the learning rate times ``lr_mult``.

Source: Caffe, ``src/caffe/solvers/*_solver.cpp``.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from demitasse.backends.updates import Update

Values = Any
"""An array, or a vector of a kernel."""

Root = Callable[[Values], Values]
"""Returns square roots."""

Numbers = Sequence[Any]
"""The coefficients of a formula, which others may follow, or the arrays of its history."""

Change = tuple[Values, ...]
"""The change to subtract from the weights, and the new history."""


class UpdateFormula(NamedTuple):
    """Formula of an update.

    Attributes:
        change: Takes a square root, the coefficients, the gradient and the history.
        coefficients: Returns the coefficients of an update.
        histories: Number of history arrays, in the order of Caffe's solver states.
    """

    change: Callable[[Root, Numbers, Values, Numbers], Change]
    coefficients: Callable[[Update], list[float]]
    histories: int = 1


def _sgd(_root: Root, numbers: Numbers, g: Values, history: Numbers) -> Change:
    """Return h = rate g + momentum h, subtract h: the learning rate is inside the momentum."""
    rate, momentum, *_ = numbers
    h = history[0] * momentum + g * rate
    return h, h


def _nesterov(_root: Root, numbers: Numbers, g: Values, history: Numbers) -> Change:
    """Return h as SGD's, subtract (1 + momentum) h - momentum h_before."""
    rate, momentum, ahead, *_ = numbers
    before = history[0] * momentum
    h = before + g * rate
    return h * ahead - before, h


def _adagrad(root: Root, numbers: Numbers, g: Values, history: Numbers) -> Change:
    """Return h = h + g^2, subtract rate g / (sqrt(h) + delta)."""
    rate, delta, *_ = numbers
    h = history[0] + g * g
    return g / (root(h) + delta) * rate, h


def _rmsprop(root: Root, numbers: Numbers, g: Values, history: Numbers) -> Change:
    """Return h, the average of g^2, subtract rate g / (sqrt(h) + delta)."""
    rate, delta, *shares = numbers
    h = _averaged(history[0], g * g, shares)
    return g / (root(h) + delta) * rate, h


def _adadelta(root: Root, numbers: Numbers, g: Values, history: Numbers) -> Change:
    """Subtract rate v with v = g sqrt((k + delta) / (h + delta)); h averages g^2, k v^2."""
    rate, delta, *shares = numbers
    h = _averaged(history[0], g * g, shares)
    v = g * root((history[1] + delta) / (h + delta))
    return v * rate, h, _averaged(history[1], v * v, shares)


def _adam(root: Root, numbers: Numbers, g: Values, history: Numbers) -> Change:
    """Subtract rate correction h / (sqrt(k) + delta); h averages g, k averages g^2."""
    rate, delta, *shares = numbers
    h = _averaged(history[0], g, shares)
    k = _averaged(history[1], g * g, shares[2:])
    return h / (root(k) + delta) * rate, h, k


def _averaged(old: Values, new: Values, shares: Numbers) -> Values:
    """Return a running average, given the shares of the old and the new value."""
    kept, fresh, *_ = shares
    return old * kept + new * fresh


FORMULAS: Mapping[str, UpdateFormula] = {
    "SGD": UpdateFormula(_sgd, lambda u: [u.rate, u.momentum]),
    "Nesterov": UpdateFormula(_nesterov, lambda u: [u.rate, u.momentum, 1 + u.momentum]),
    "AdaGrad": UpdateFormula(_adagrad, lambda u: [u.rate, u.delta]),
    "RMSProp": UpdateFormula(_rmsprop, lambda u: [u.rate, u.delta, u.decay2, 1 - u.decay2]),
    "AdaDelta": UpdateFormula(
        _adadelta, lambda u: [u.rate, u.delta, u.momentum, 1 - u.momentum], histories=2
    ),
    "Adam": UpdateFormula(
        _adam,
        lambda u: [
            u.rate * u.correction, u.delta, u.momentum, 1 - u.momentum, u.decay2, 1 - u.decay2
        ],
        histories=2,
    ),
}  # fmt: skip
"""The formulas by the type of solver that is named after them."""
