"""Parameter updates: all of an iteration in one compiled kernel, to numpy's bits.

numpy updates by rare formulas, and where no kernel can be compiled.
"""

from collections.abc import Hashable, Sequence
from functools import cache

import numpy as np

from demitasse.backends.cpu.engine import engine, thread_count
from demitasse.backends.kernels import fused_optimizer
from demitasse.backends.kernels.fused_optimizer import FusedOptimizer
from demitasse.backends.kernels.language import call_recorder
from demitasse.backends.numpy import updates as numpy_updates
from demitasse.backends.numpy.updates import sumsq
from demitasse.backends.updates import KERNEL_FORMULAS, Piece, Update

__all__ = ["apply", "coefficients", "sumsq"]


_optimizer = cache(FusedOptimizer)


def coefficients(updates: Sequence[Update]) -> tuple[np.ndarray, Hashable] | None:
    """Return the coefficients of each update, and what is computed; see the interface."""
    if not all(map(_has_kernel, updates)):
        return None
    return fused_optimizer.coefficients(updates)


def apply(pieces: Sequence[Piece], coefficients: np.ndarray | None = None) -> None:
    """Make all updates of one iteration."""
    tuning = engine().tuning.as_set(thread_count())
    fused: list[Piece] = []
    rest: list[Piece] = []
    for piece in pieces:
        compiled = tuning.width and _has_kernel(piece.update) and piece.data.dtype == np.float32
        (fused if compiled else rest).append(piece)
    if fused:
        _optimizer(tuning)(fused, None if rest else coefficients)
    if rest:
        call_recorder.mark_incomplete()
        numpy_updates.apply(rest)


def _has_kernel(update: Update) -> bool:
    return update.kind in KERNEL_FORMULAS and not update.l1
