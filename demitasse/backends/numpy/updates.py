"""Parameter updates on numpy: in place, block by block, so that each block stays in the cache.

The arithmetic is that of ``demitasse.backends.updates``, operation by operation, so the
results are the same bit for bit. An iteration then reads and writes each array about once, and
large nets are spread over threads (numpy lets go of the interpreter's lock inside its loops).
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from functools import cache

import numpy as np

from demitasse.backends.updates import Piece, Update
from demitasse.core.threads import Pool, wanted_threads
from demitasse.errors import DeviceError

BLOCK = 1 << 16
"""Elements worked on at a time: four blocks of floats fill a cache of 1 MB. Much smaller blocks
cost more in calls, and in threads that wait for the interpreter, than they gain."""

THREADED = 1 << 22  # elements from which on threads gain more than they cost

Work = tuple[Piece, int, int]  # a piece and the range of it to work on
Values = np.ndarray
Change = Callable[[Update, Values, list[Values], Values, Values], None]
"""Turns the gradient into the value to subtract; the last two arrays are scratch."""


def apply(pieces: Sequence[Piece]) -> None:
    """Make all updates of one iteration; if no thread can be started, some may have been made."""
    total = sum(piece.data.shape[0] for piece in pieces)
    workers = wanted_threads() if total >= THREADED else 1
    if workers == 1:
        _run(_ranges(pieces, total))
        return
    # whole blocks for every worker, so that the split changes no result
    share = -(-total // workers // BLOCK) * BLOCK
    pool = _pool(workers)
    try:
        runs = [pool.submit(_run, work) for work in _shares(pieces, share)]
    except DeviceError:
        _pool.cache_clear()
        raise
    wait(runs)  # for all of them, also where one fails
    for run in runs:
        run.result()


def sumsq(diffs: Sequence[np.ndarray]) -> float:
    """Return the sum of the squares of all elements, each block's in the arrays' own precision."""
    total = 0.0
    for diff in diffs:
        for start in range(0, diff.shape[0], BLOCK):
            block = diff[start : start + BLOCK]
            total += float(np.dot(block, block))
    return total


@cache
def _pool(workers: int) -> Pool:
    return Pool(workers, "demitasse-update")


if hasattr(os, "register_at_fork"):  # a forked process does not have its parent's threads
    os.register_at_fork(after_in_child=_pool.cache_clear)


def _ranges(pieces: Sequence[Piece], longest: int) -> Iterator[Work]:
    """Yield all pieces, cut where they are longer than ``longest``."""
    for piece in pieces:
        for start in range(0, piece.data.shape[0], longest):
            yield piece, start, min(start + longest, piece.data.shape[0])


def _shares(pieces: Sequence[Piece], size: int) -> list[list[Work]]:
    """Return lists of work of about ``size`` elements each."""
    shares: list[list[Work]] = [[]]
    filled = 0
    for piece, start, stop in _ranges(pieces, size):
        if filled + stop - start > size and filled:
            shares.append([])
            filled = 0
        shares[-1].append((piece, start, stop))
        filled += stop - start
    return shares


def _run(work: Sequence[Work] | Iterator[Work]) -> None:
    scratch: dict[np.dtype, tuple[np.ndarray, np.ndarray]] = {}
    for piece, first, last in work:
        kind = piece.data.dtype
        if kind not in scratch:
            scratch[kind] = (np.empty(BLOCK, kind), np.empty(BLOCK, kind))
        one, two = scratch[kind]
        update, change = piece.update, CHANGES[piece.update.kind]
        for start in range(first, last, BLOCK):
            part = slice(start, min(start + BLOCK, last))
            n = part.stop - start
            data, diff = piece.data[part], piece.diff[part]
            history = [array[part] for array in piece.history]
            _block(update, change, data, diff, history, one[:n], two[:n])


def _block(
    u: Update, change: Change, w: Values, g: Values, history: list[Values], t: Values, s: Values
) -> None:
    if u.scale != 1.0:
        np.multiply(g, u.scale, out=g)
    decoupled = u.kind == "AdamW"
    if u.decay and not decoupled:
        np.multiply(np.sign(w, out=t) if u.l1 else w, u.decay, out=t)
        np.add(g, t, out=g)
    change(u, g, history, t, s)
    if u.decay and decoupled:
        np.multiply(w, u.rate * u.decay, out=t)
        np.add(g, t, out=g)
    np.subtract(w, g, out=w)


def _sgd(u: Update, g: Values, history: list[Values], t: Values, s: Values) -> None:
    (h,) = history
    np.multiply(g, u.rate, out=g)
    np.multiply(h, u.momentum, out=h)
    np.add(h, g, out=h)
    np.copyto(g, h)


def _nesterov(u: Update, g: Values, history: list[Values], t: Values, s: Values) -> None:
    (h,) = history
    np.multiply(g, u.rate, out=g)
    np.multiply(h, u.momentum, out=t)
    np.add(t, g, out=h)
    np.multiply(h, 1 + u.momentum, out=g)
    np.subtract(g, t, out=g)


def _adagrad(u: Update, g: Values, history: list[Values], t: Values, s: Values) -> None:
    (h,) = history
    np.multiply(g, g, out=t)
    np.add(h, t, out=h)
    _divide_by_root(u, g, h, t)
    np.multiply(g, u.rate, out=g)


def _rmsprop(u: Update, g: Values, history: list[Values], t: Values, s: Values) -> None:
    (h,) = history
    np.multiply(g, g, out=t)
    _average(h, t, u.decay2)
    _divide_by_root(u, g, h, t)
    np.multiply(g, u.rate, out=g)


def _adadelta(u: Update, g: Values, history: list[Values], t: Values, s: Values) -> None:
    h, k = history
    np.multiply(g, g, out=t)
    _average(h, t, u.momentum)
    np.add(k, u.delta, out=t)
    np.add(h, u.delta, out=s)
    np.divide(t, s, out=t)
    np.multiply(g, np.sqrt(t, out=t), out=g)
    np.multiply(g, g, out=t)
    _average(k, t, u.momentum)
    np.multiply(g, u.rate, out=g)


def _adam(u: Update, g: Values, history: list[Values], t: Values, s: Values) -> None:
    h, k = history
    np.copyto(t, g)
    _average(h, t, u.momentum)
    np.multiply(g, g, out=t)
    _average(k, t, u.decay2)
    np.copyto(g, h)
    _divide_by_root(u, g, k, t)
    np.multiply(g, u.rate * u.correction, out=g)


def _average(h: np.ndarray, new: np.ndarray, keep: float) -> None:
    """Move the running average ``h`` towards ``new``, which is overwritten."""
    np.multiply(new, 1 - keep, out=new)
    np.multiply(h, keep, out=h)
    np.add(h, new, out=h)


def _divide_by_root(u: Update, g: np.ndarray, h: np.ndarray, t: np.ndarray) -> None:
    np.sqrt(h, out=t)
    np.add(t, u.delta, out=t)
    np.divide(g, t, out=g)


CHANGES: dict[str, Change] = {
    "SGD": _sgd, "Nesterov": _nesterov, "AdaGrad": _adagrad, "RMSProp": _rmsprop,
    "AdaDelta": _adadelta, "Adam": _adam, "AdamW": _adam,
}  # fmt: skip
