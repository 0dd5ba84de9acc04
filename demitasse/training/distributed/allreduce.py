"""Means over all shards of a run: deterministic, in the library's order, or in half precision.

**Deterministic**: every sum is a binary tree over the shards, whichever process hosts a shard.

**Half precision**: an array is scaled by a power of two, so that its largest finite value fills the
range of float16, and rounded to eleven significant bits. No value overflows; values below the
largest divided by 2^38 become 0. NaN and infinity arrive unchanged and do not affect other values.
numpy converts one value at a time; the code below converts bit patterns, several at a time. A
float32 that is multiplied by 2^-112 has the exponent bits of float16, 13 bits further up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse.backends.arrays import Array
from demitasse.backends.collective import Collective

if TYPE_CHECKING:
    from demitasse.training.distributed.group import Shards

BUCKET_BYTES = 8 << 20
"""Bytes that are reduced at a time: enough to be fast, few enough to stay small."""

HEADER = 2
"""Elements before the values of a message: the power of two; 1 if any value is NaN or infinite."""

LARGEST_EXPONENT = 14  # exponent that the largest value is scaled to: float16 ends below 2^16

CHUNK = 1 << 15
"""Values that are converted at a time; their temporary arrays fit into a core's cache."""

BIAS = 112  # exponent bias of float32 minus that of float16
FRACTION = np.uint32(13)  # fraction bits of float32 minus those of float16


def tree_sum(parts: Sequence[Array]) -> None:
    """Replace the first array by the sum of all, added as a tree; the others change, too.

    The far half is added to the near half until one array is left: of eight, 4 to 0, 5 to 1, 6 to 2
    and 7 to 3, then 2 to 0 and 3 to 1, then 1 to 0.
    """
    count = len(parts)
    while count > 1:
        half = (count + 1) // 2
        for near, far in zip(parts, parts[half:count], strict=False):
            near += far  # noqa: PLW2901 - in place
        count = half


def deterministic_mean(
    collective: Collective,
    shards: Shards,
    parts: Sequence[Array],
    xp: Any = np,
    bucket: int = BUCKET_BYTES,
) -> None:
    """Replace the first part by the mean over all shards; any number of processes gives its bits.

    Each process sums a slice of the array over all shards, by :func:`tree_sum`, and sends the sum
    to the others. If processes may sum their own shards first, as many bytes travel as in a ring.
    ``parts`` are the values of this process's shards, (count,) each, in the namespace ``xp``.
    """
    if shards.summed_locally:
        tree_sum(parts)
        parts = parts[:1]
    count, itemsize = parts[0].shape[0], parts[0].itemsize
    step = max(1, bucket // itemsize)
    for start in range(0, count, step):
        buffers: list[Array] = [part[start : start + step] for part in parts]
        if collective.size > 1:
            _sum_bucket(collective, shards, buffers, xp)
        buffers[0] /= shards.count


def fast_mean(collective: Collective, shards: Shards, parts: Sequence[Array]) -> None:
    """Replace the first part by the mean over all shards, in the order of the library.

    All processes get the same bits. Another number of processes, or another library, may give other
    bits.
    """
    tree_sum(parts)
    mean: Array = parts[0]
    if collective.size > 1:
        collective.allreduce(mean)
    mean /= shards.count


def fp16_mean(
    collective: Collective, shards: Shards, parts: Sequence[np.ndarray], bucket: int = BUCKET_BYTES
) -> None:
    """Replace the first part by the mean over all shards, sent in half precision.

    Sums are added in the precision of the net; only messages are rounded, once each way. All
    processes get the same bits, another number of processes other bits.
    """
    tree_sum(parts)
    mean, rank, size = parts[0], collective.rank, collective.size
    step = max(1, bucket // mean.itemsize)
    for start in range(0, mean.shape[0], step) if size > 1 else ():
        buffer = mean[start : start + step]
        bounds = [buffer.size * r // size for r in range(size + 1)]
        slices = [buffer[a:b] for a, b in pairwise(bounds)]
        empty = np.empty(0, np.float16)
        sent = [empty if r == rank else to_fp16(part) for r, part in enumerate(slices)]
        length = slices[rank].size + HEADER
        received = collective.alltoall(sent, [0 if r == rank else length for r in range(size)])
        terms = [slices[rank] if r == rank else np.empty_like(slices[rank]) for r in range(size)]
        for r in range(size):
            if r != rank:
                from_fp16(received[r], terms[r])
        tree_sum(terms)
        places = [bound + HEADER * r for r, bound in enumerate(bounds)]
        sums = np.empty(places[-1], np.float16)
        collective.allgather(to_fp16(terms[0]), sums, places)
        for r, part in enumerate(slices):
            from_fp16(sums[places[r] : places[r + 1]], part)
    mean /= shards.count


def _sum_bucket(collective: Collective, shards: Shards, buffers: Sequence[Array], xp: Any) -> None:
    """Replace the first buffer by the sum of all processes' buffers."""
    size, rank, count = collective.size, collective.rank, buffers[0].shape[0]
    bounds = [count * r // size for r in range(size + 1)]
    slices = [slice(a, b) for a, b in pairwise(bounds)]
    own = bounds[rank + 1] - bounds[rank]
    counts = [1 if shards.summed_locally else len(shards.of(r)) for r in range(size)]
    to_send = [xp.concat([buffer[s] for buffer in buffers]) for s in slices]
    received = collective.alltoall(to_send, [own * n for n in counts])
    ordered: dict[int, Array] = {}
    for source, array in enumerate(received):
        rows = xp.reshape(array, (counts[source], own))
        ordered.update(zip(shards.of(source), rows, strict=False))
    terms = [ordered[number] for number in sorted(ordered)]
    tree_sum(terms)
    collective.allgather(terms[0], buffers[0], bounds)


def to_fp16(values: np.ndarray) -> np.ndarray:
    """Return float32 or float64 values as a message. Shapes: (n,) -> (n + 2,), float16."""
    message = np.empty(values.size + HEADER, np.float16)
    original, largest, nonfinite = values, _largest(values), None
    if not math.isfinite(largest):
        nonfinite = ~np.isfinite(values)
        largest = _largest(values[~nonfinite])
    limit = np.finfo(values.dtype).max * (1 - 2.0**-11)
    if largest > limit:  # rounding would give infinity
        values = np.clip(values, -limit, limit)
    power = LARGEST_EXPONENT - math.frexp(largest)[1]
    message[:HEADER] = power, nonfinite is not None  # integers of at most four digits are exact
    halves = message[HEADER:].view(np.uint16)
    for start in range(0, values.size, CHUNK):
        part = slice(start, start + CHUNK)
        scaled = _scaled(values[part], power - BIAS).astype(np.float32, copy=False)
        bits = scaled.view(np.uint32)
        sign = (bits >> np.uint32(16)) & np.uint32(0x8000)
        bits &= np.uint32(0x7FFFFFFF)
        bits += np.uint32(0xFFF) + ((bits >> FRACTION) & np.uint32(1))  # to nearest, ties to even
        bits >>= FRACTION
        np.bitwise_or(bits, sign, out=halves[part], casting="unsafe")
    if nonfinite is not None:
        message[HEADER:][nonfinite] = original[nonfinite]
    return message


def from_fp16(message: np.ndarray, values: np.ndarray) -> None:
    """Write the values of a message to an array. Shapes: (n + 2,) -> (n,)."""
    body = message[HEADER:]
    halves, power = body.view(np.uint16), BIAS - int(message[0])
    for start in range(0, values.size, CHUNK):
        part = slice(start, start + CHUNK)
        bits = halves[part].astype(np.uint32)
        sign = (bits & np.uint32(0x8000)) << np.uint32(16)
        bits &= np.uint32(0x7FFF)
        bits <<= FRACTION
        bits |= sign
        values[part] = _scaled(bits.view(np.float32).astype(values.dtype, copy=False), power)
    if message[1]:
        nonfinite = ~np.isfinite(body)
        values[nonfinite] = body[nonfinite]


def _largest(values: np.ndarray) -> float:
    """Return the largest magnitude; NaN if any value is NaN, 0 of no values. Shape: (n,)."""
    return float(max(values.max(), -values.min())) if values.size else 0.0


def _scaled(values: np.ndarray, power: int) -> np.ndarray:
    """Return values times a power of two, which may be outside the range of float32."""
    if -126 <= power <= 127:
        scaled: np.ndarray = values * values.dtype.type(2.0**power)
        return scaled
    return np.asarray(np.ldexp(values, power))
