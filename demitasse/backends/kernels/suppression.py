"""Greedy non-maximum suppression of boxes; ``layers/detection/boxes.py`` has the same in numpy."""

from collections.abc import Sequence
from functools import cache
from math import inf, nan

import numpy as np

from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import (
    RUNTIME,
    Address,
    Arguments,
    Output,
    Scratch,
    Struct,
)
from demitasse.backends.kernels.language.values import (
    FLOAT,
    HALF,
    INT,
    Word,
    choose,
    clamp_max,
    clamp_min,
    larger,
    minimum,
)

WIDTH = 8
"""Boxes of a vector."""

ROWS = 6
"""Rows of the scratch memory: left, top, right, bottom, area, and the largest overlap."""

FIRST_NAN = 0x7FC0
"""Upper half of the smallest quiet NaN, without its sign."""


class SuppressionFields(Struct):
    """Groups of boxes, the best of each first."""

    boxes: Address
    columns: Scratch
    """Rows of whole vectors. The largest overlap is that with the boxes that stay, and NaN for a
    box that is dropped."""
    row_bytes: Word
    limits: Address
    """Largest accepted overlap, before the first box that stays and after each; the last one holds
    after all further boxes."""
    last_limit: Word
    groups: Word
    counts: Address
    """Number of boxes of each group."""
    most: Word
    """Boxes of a group that stay at most."""
    kept: Output
    """Number of boxes that stay, and their indices."""


@SuppressionFields.kernel("suppression")
def _kernel(k: Kernel, f: SuppressionFields) -> None:
    k.store_word(0, f.kept)
    with k.loop(f.groups, words=[k.word(0)]) as group:
        [first] = group.words
        count = k.load_word(f.counts + group.i * INT)
        _write_group(k, f, first, count)
        group.words = [first + count]


def _write_group(k: Kernel, f: SuppressionFields, first: Word, count: Word) -> None:
    """Write the suppression of ``count`` boxes from the ``first`` on."""
    vector = k.vector_bytes
    end = (count + (WIDTH - 1)) // WIDTH * vector
    rows = [f.columns + f.row_bytes * i for i in range(ROWS)]
    with k.loop(count) as box:
        source = f.boxes + (first + box.i) * (4 * FLOAT)
        for i in range(4):
            k.store(k.load_float(source + FLOAT * i), rows[i] + box.i * FLOAT)
    with k.loop(end, 0, vector) as some:
        left, top, right, bottom = (k.load(row + some.i) for row in rows[:4])
        wide, high = right - left, bottom - top
        area = choose(high < 0.0, 0.0, choose(wide < 0.0, 0.0, wide * high))
        k.store(area, rows[4] + some.i)
        k.store(k.constant(0.0), rows[5] + some.i)
        numbers = (left >= -inf) & (top >= -inf) & (right >= -inf) & (bottom >= -inf)
        k.store(choose(numbers, left, inf), rows[0] + some.i)  # else it overlaps none
        k.store(choose(numbers, right, -inf), rows[2] + some.i)
    before = k.load_word(f.kept)
    with k.loop(count) as box:
        upper = k.load_unsigned(rows[5] + box.i * FLOAT + HALF, 16) % (1 << 15)
        number, row = k.load_word(f.kept) + 1, box.i * FLOAT
        with k.when((upper < FIRST_NAN) & (number - before <= f.most)):
            k.store_word(number, f.kept)
            k.store_word(first + box.i, f.kept + number * INT)
            limit = k.broadcast(f.limits + minimum(number - before, f.last_limit) * FLOAT)
            own = [k.broadcast(one + row) for one in rows[:5]]
            with k.loop(end, box.i // WIDTH * vector, vector) as some:
                other = [k.load(one + some.i) for one in rows]
                wide = clamp_max(own[2], other[2]) - clamp_min(own[0], other[0])
                high = clamp_max(own[3], other[3]) - clamp_min(own[1], other[1])
                shared = wide * high
                overlap = shared / (own[4] + other[4] - shared)
                overlap = choose((wide > 0.0) & (high > 0.0), overlap, 0.0)
                overlap = larger(other[5], overlap)
                k.store(choose(limit >= overlap, overlap, nan), rows[5] + some.i)


@cache
def _arguments() -> Arguments:
    """Return the arguments of all calls."""
    numbers = dict.fromkeys(("row_bytes", "last_limit", "groups", "most"), RUNTIME)
    return Arguments(SuppressionFields.values(**numbers))


def suppressed(
    boxes: np.ndarray, limits: np.ndarray, most: int, counts: Sequence[int]
) -> list[int]:
    """Return the indices of the boxes that stay, the first ``most`` of each group.

    Shapes: boxes (K, 4), float32 in C order; limits (L,), float32, at least one; as many ``counts``
    as groups, which add up to K.
    """
    if sum(counts) != len(boxes):
        message = f"groups of {list(counts)} boxes were given for {len(boxes)}"
        raise ValueError(message)
    row = -(-max(counts) // WIDTH) * WIDTH
    kept, columns = np.empty(1 + len(boxes), np.int64), np.empty(ROWS * row, np.float32)
    each = {"boxes": boxes, "columns": columns, "limits": limits, "kept": kept}
    each["counts"] = np.array(counts, np.int64)
    numbers = {"last_limit": len(limits) - 1, "groups": len(counts), "most": most}
    _arguments().run(_kernel(WIDTH), 1, {**each, **numbers, "row_bytes": row * FLOAT})
    stay: list[int] = kept[1 : 1 + kept[0]].tolist()
    return stay
