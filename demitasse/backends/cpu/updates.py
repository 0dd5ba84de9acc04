"""Parameter updates: all of an iteration in one compiled kernel, to numpy's bits.

numpy updates by rare formulas, and where no kernel can be compiled.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np

from demitasse.backends.cpu.engine import engine, thread_count
from demitasse.backends.kernels.fused_optimizer import FusedOptimizer
from demitasse.backends.numpy import updates as numpy_updates
from demitasse.backends.numpy.updates import sumsq
from demitasse.backends.updates import KERNEL_FORMULAS, Piece

__all__ = ["apply", "sumsq"]


_optimizer = cache(FusedOptimizer)


def apply(pieces: Sequence[Piece]) -> None:
    """Make all updates of one iteration."""
    tuning = engine().tuning.as_set(thread_count())
    fused: list[Piece] = []
    rest: list[Piece] = []
    for piece in pieces:
        u = piece.update
        has_kernel = u.kind in KERNEL_FORMULAS and not u.l1 and piece.data.dtype == np.float32
        (fused if tuning.width and has_kernel else rest).append(piece)
    if fused:
        _optimizer(tuning)(fused)
    if rest:
        numpy_updates.apply(rest)
