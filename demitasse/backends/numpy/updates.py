"""Parameter updates on numpy: in place, block by block, so that each block stays in the cache.

The formulas are those of :mod:`demitasse.backends.updates`, so the results are the same bit for
bit. An iteration reads and writes each array about once.
"""

from collections.abc import Sequence

import numpy as np

from demitasse.backends.updates import KERNEL_FORMULAS, Piece, Update

BLOCK = 1 << 16
"""Elements worked on at a time: four blocks of floats fill a cache of 1 MB."""


def apply(pieces: Sequence[Piece]) -> None:
    """Make all updates of one iteration."""
    for piece in pieces:
        for start in range(0, piece.data.shape[0], BLOCK):
            part = slice(start, start + BLOCK)
            history = [array[part] for array in piece.history]
            _update(piece.update, piece.data[part], piece.diff[part], history)


def sumsq(diffs: Sequence[np.ndarray]) -> float:
    """Return the sum of the squares of all elements, each block's in the arrays' own precision."""
    total = 0.0
    for diff in diffs:
        for start in range(0, diff.shape[0], BLOCK):
            block = diff[start : start + BLOCK]
            total += float(np.dot(block, block))
    return total


def _update(u: Update, w: np.ndarray, g: np.ndarray, history: list[np.ndarray]) -> None:
    """Overwrite weights, gradient and history; the gradient becomes what was subtracted."""
    decoupled, formula = u.kind == "AdamW", KERNEL_FORMULAS[u.kind]
    if u.scale != 1.0:
        g *= u.scale
    if u.decay and not decoupled:
        g += u.decay * (np.sign(w) if u.l1 else w)
    g[...], *new = formula.change(np.sqrt, formula.coefficients(u), g, history)
    if u.decay and decoupled:
        g += (u.rate * u.decay) * w
    w -= g
    for array, value in zip(history, new, strict=True):
        array[...] = value
