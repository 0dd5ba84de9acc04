"""Parameter updates: all of an iteration in one compiled kernel, to numpy's bits.

numpy updates by rare formulas, and where no kernel can be compiled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from demitasse.backends.cpu.engine import engine
from demitasse.backends.cpu.threads import wanted
from demitasse.backends.numpy import updates as numpy_updates
from demitasse.backends.numpy.updates import sumsq
from demitasse.backends.updates import Piece, Update

if TYPE_CHECKING:
    from demitasse.backends.kernels.fused_optimizer import FusedOptimizer, Parameter
    from demitasse.backends.kernels.tuning import Tuning

__all__ = ["apply", "sumsq"]


def _momentum(u: Update) -> list[float]:
    return [u.rate, u.momentum]


def _averages(u: Update, *kept: float) -> list[float]:
    """Return the rate, the delta, and the shares of running averages."""
    return [u.rate, u.delta, *(share for k in kept for share in (k, 1 - k))]


def _corrected(u: Update) -> list[float]:
    """Return those of Adam, whose averages begin at 0."""
    return [u.rate * u.correction, *_averages(u, u.momentum, u.decay2)[1:]]


NUMBERS: dict[str, Callable[[Update], list[float]]] = {
    "SGD": _momentum,
    "Nesterov": lambda u: [*_momentum(u), 1 + u.momentum],
    "AdaGrad": _averages,
    "RMSProp": lambda u: _averages(u, u.decay2),
    "AdaDelta": lambda u: _averages(u, u.momentum),
    "Adam": _corrected,
    "AdamW": lambda u: [*_corrected(u), u.rate * u.decay],
}
"""Kernel rule and its numbers for an update, where a kernel exists."""


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.optimizers: dict[Tuning, FusedOptimizer] = {}


_own = _OfThread()


def apply(pieces: Sequence[Piece]) -> None:
    """Make all updates of one iteration."""
    tuning = engine().tuning.as_set(wanted())
    fused: list[Piece] = []
    rest: list[Piece] = []
    for piece in pieces:
        u = piece.update
        has_kernel = u.kind in NUMBERS and not u.l1 and piece.data.dtype == np.float32
        (fused if tuning.width and has_kernel else rest).append(piece)
    if fused:
        from demitasse.backends.kernels.fused_optimizer import FusedOptimizer, Parameter

        optimizer = _own.optimizers.get(tuning)
        if optimizer is None:
            optimizer = _own.optimizers[tuning] = FusedOptimizer(tuning)
        optimizer([_parameter(piece, Parameter) for piece in fused])
    if rest:
        numpy_updates.apply(rest)


def _parameter(piece: Piece, make: type[Parameter]) -> Parameter:
    u = piece.update
    numbers = float(u.scale), u.decay, *NUMBERS[u.kind](u)
    coupled = u.kind != "AdamW"
    rule = u.kind if coupled or u.decay else "Adam"
    decays = coupled and u.decay != 0
    arrays = piece.data, piece.diff, *piece.history
    return make(arrays, rule, decays, numbers)
