"""Which arrays of two models are the same thing: by name, else by order, shape and operation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Item", "align", "by_name", "same_shape"]

NEVER = -1


@dataclass(frozen=True)
class Item:
    """An array to be matched.

    Attributes:
        names: What it may be called, the name that counts most first.
        shape: Its shape.
        kind: What made it, or what it is for; empty where not known.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    kind: str = ""


def same_shape(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether shapes are the same but for axes of 1, which frameworks keep or drop."""
    return [size for size in one if size != 1] == [size for size in other if size != 1]


def by_name(ours: Sequence[Item], theirs: Sequence[Item]) -> dict[int, int]:
    """Return, for the numbers of our items, those of the others that have the same name.

    A blob that several layers write in place is one name for several arrays. Each of them takes the
    other's array of its layer's name if all have one; else the last takes the one of the blob's.

    Args:
        ours: Items that are called by their layers (``names[0]``) and blobs (``names[1]``).
        theirs: Items that are called anything.
    """
    called: dict[str, int] = {}
    for level in range(max((len(item.names) for item in theirs), default=0)):
        at_level = {t.names[level]: j for j, t in enumerate(theirs) if level < len(t.names)}
        called = at_level | called  # names that count more win; of equals the last
    writers: dict[str, list[int]] = {}
    for i, item in enumerate(ours):
        writers.setdefault(item.names[1], []).append(i)
    found: dict[int, int] = {}
    for blob, numbers in writers.items():
        layers = [ours[i].names[0] for i in numbers]
        if all(layer in called for layer in layers) and len({called[n] for n in layers}) > 1:
            found |= {i: called[name] for i, name in zip(numbers, layers, strict=True)}
        elif blob in called:
            found[numbers[-1]] = called[blob]
        elif layers[-1] in called:
            found[numbers[-1]] = called[layers[-1]]
    return _once(found)


def _once(found: dict[int, int]) -> dict[int, int]:
    """Leave out what another item has taken already."""
    return {i: j for j, i in {j: i for i, j in found.items()}.items()}


def align(
    ours: Sequence[Item], theirs: Sequence[Item], pairs: dict[int, int] | None = None
) -> dict[int, int]:
    """Match what ``pairs`` leaves by order: the longest common subsequence of equal shapes.

    Items whose kinds are known and differ do not match; items of equal kinds count twice. Of equal
    ways the one that matches later items wins: a bias is added after the product.

    Args:
        ours: Items in the order of computation.
        theirs: The same of the other model.
        pairs: What is matched already, and stays so.

    Returns:
        The pairs that were added.
    """
    fixed = dict(pairs or {})
    score = np.full((len(ours), len(theirs)), NEVER, np.int64)
    taken = set(fixed.values())
    anchor = 2 * (len(ours) + len(theirs)) + 1  # more than everything else together
    for i, one in enumerate(ours):
        if i in fixed:
            score[i, fixed[i]] = anchor
            continue
        for j, other in enumerate(theirs):
            if j in taken or not same_shape(one.shape, other.shape):
                continue
            if one.kind and other.kind:
                score[i, j] = 2 if one.kind == other.kind else NEVER
            else:
                score[i, j] = 1
    found = _longest(score)
    return {i: j for i, j in found.items() if i not in fixed}


def _longest(score: np.ndarray) -> dict[int, int]:
    """Return the rising pairs (row, column) with the largest sum of scores.

    Args:
        score: (rows, columns); ``NEVER`` where a pair is not allowed.
    """
    rows, columns = score.shape
    best = np.zeros((rows + 1, columns + 1), np.int64)
    for i in range(rows):
        with_pair = np.where(score[i] > 0, best[i, :-1] + score[i], 0)
        best[i + 1, 1:] = np.maximum.accumulate(np.maximum(best[i, 1:], with_pair))
    found: dict[int, int] = {}
    i, j = rows, columns
    while i and j:
        value = score[i - 1, j - 1]
        if value > 0 and best[i, j] == best[i - 1, j - 1] + value:
            i, j = i - 1, j - 1
            found[i] = j
        elif best[i, j] == best[i, j - 1]:
            j -= 1
        else:
            i -= 1
    return found
