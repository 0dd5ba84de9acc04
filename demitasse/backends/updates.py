"""The numbers of one parameter update, and what a backend's fast updates must offer.

Each formula is written once (``update_formulas``). A backend may have a faster body for all; a test
holds the two equal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

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


class Piece(FrozenStruct):
    """One parameter and the arrays of its update. All arrays are one-dimensional, of one length.

    ``history`` is overwritten, ``diff`` becomes what is subtracted from ``data``. ``count`` is the
    number of elements without padding, where there is some.
    """

    update: Update
    data: Array
    diff: Array
    history: Sequence[Array]
    count: int = 0


class UpdateKernels(Protocol):
    """Interface of a backend's fast parameter updates."""

    def apply(self, pieces: Sequence[Piece], /) -> None:
        """Make all updates of one iteration."""

    def sumsq(self, diffs: Sequence[Array], /) -> float | Array:
        """Return the sum of the squares of all elements: a number, or a 0-d array on the device."""


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
