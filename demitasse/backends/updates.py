"""Parameter updates: the numbers and formulas, and what a backend's fast updates must offer.

A formula has operators and square roots alone, so that array libraries and compiled kernels run the
same one. In the formulas g is the gradient (clipped, divided by ``iter_size``, with the decay
added), h and k the history; ``rate`` is the learning rate times ``lr_mult``.

Source of the formulas: Caffe, ``src/caffe/solvers/*_solver.cpp``.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from demitasse.backends.arrays import Array
from demitasse.core.frozen_struct import FrozenStruct


@dataclass(frozen=True)
class Update:
    """One iteration's numbers for one parameter.

    Attributes:
        kind: The solver's type.
        rate: Learning rate times ``lr_mult``.
        decay: ``weight_decay`` times ``decay_mult``.
        l1: The decay is that of the absolute value, not of the square.
        scale: What the raw gradient is multiplied with first: clipping and 1 / ``iter_size``. A
            number, or a 0-d array of the gradient's dtype.
        decay2: ``momentum2`` or ``rms_decay``: how slowly averages of squares move.
        delta: Keeps denominators away from 0.
        correction: Makes up for Adam's averages starting at 0.
        trust: The rate is multiplied with this and with the norm of the weights over that of what
            is to be subtracted. 0 leaves the rate as it is.
        guard: A 0-d array of the gradient's dtype: where it is NaN or infinite nothing is changed.
            None changes all. Only backends that queue their work are given one.
    """

    kind: str
    rate: float
    decay: float = 0.0
    l1: bool = False
    scale: float | Array = 1.0
    momentum: float = 0.0
    decay2: float = 0.0
    delta: float = 0.0
    correction: float = 1.0
    trust: float = 0.0
    guard: Array | None = None


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

KERNEL_FORMULAS: Mapping[str, UpdateFormula] = {**FORMULAS, "AdamW": FORMULAS["Adam"]}
"""Those of fast updates, by the type of the solver."""


class Piece(FrozenStruct):
    """One parameter and the arrays of its update. All arrays are one-dimensional, of one length.

    ``history`` is overwritten, ``diff`` becomes what is subtracted from ``data``.
    """

    update: Update
    data: Array
    diff: Array
    history: Sequence[Array]


class UpdateKernels(Protocol):
    """Interface of a backend's fast parameter updates."""

    def apply(self, pieces: Sequence[Piece], /) -> None:
        """Make all updates of one iteration."""

    def sumsq(self, diffs: Sequence[Array], /) -> float | Array:
        """Return the sum of the squares of all elements: a number, or a 0-d array on the device."""


@runtime_checkable
class RecordedUpdateKernels(UpdateKernels, Protocol):
    """Interface of the fast updates of a host, whose calls are recorded and replayed."""

    def coefficients(self, updates: Sequence[Update], /) -> tuple[Array, Hashable] | None:
        """Return the coefficients of each update, and what is computed with them.

        None if there is no kernel for one of the updates. Shape: (updates, coefficients).
        """

    def apply(self, pieces: Sequence[Piece], coefficients: Array | None = None, /) -> None:
        """Make all updates of one iteration.

        ``coefficients`` are read in each replay; None for those of the pieces.
        """


class PreparedUpdate(Protocol):
    """An update of arrays that stay in place."""

    def write(self, updates: Sequence[Update], /) -> None:
        """Copy an iteration's numbers to the device, for each piece in order."""

    def queue(self) -> None:
        """Queue the update, which reads its numbers on the device."""


@runtime_checkable
class QueuedUpdateKernels(UpdateKernels, Protocol):
    """Interface of the fast updates of a device that queues its work; they can be recorded."""

    def prepare(self, pieces: Sequence[Piece], /) -> PreparedUpdate:
        """Return the update of these arrays, for numbers that are given later."""

    def clip_scale(self, total: Array, limit: float, /) -> Array:
        """Return the factor that clips the norm of the gradients to ``limit``.

        Shapes: ``total``, the sum of their squares, () -> ().
        """

    def unscale(
        self, total: Array, state: Array, guard: Array | None, limit: float, interval: float, /
    ) -> tuple[Array, Array]:
        """Return the factor of gradients that a loss scale has multiplied, and an update's guard.

        The factor also clips their norm to ``limit``, unless that is below 0. The guard is NaN if
        they, or the guard before, are not finite. The scale is halved if they are not, and doubled
        after ``interval`` updates.

        Shapes: ``total``, the sum of their squares, (); ``state``, the scale and the number of
        updates since its last change, (2,); ``guard`` () -> (), ().
        """
