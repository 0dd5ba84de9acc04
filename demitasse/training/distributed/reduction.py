"""The mean over all shards, in an order that does not depend on who hosts them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from demitasse.backends.arrays import Array
from demitasse.backends.collective import Collective
from demitasse.training.distributed.half import HEAD, packed, unpacked
from demitasse.training.distributed.order import add_up
from demitasse.training.distributed.shards import Shards

__all__ = ["exact_mean", "fast_mean", "half_mean"]

BUCKET = 8 << 20
"""Bytes that are reduced at a time: enough to be fast, few enough to stay small."""


def exact_mean(
    collective: Collective,
    shards: Shards,
    parts: Sequence[Array],
    xp: Any = np,
    bucket: int = BUCKET,
) -> None:
    """Replace the first part by the mean over all shards of the run: the same bits for any size.

    Each process adds a slice of the whole for all shards, in the order of ``add_up``, and gives the
    sum to the others. The bytes that travel are those of a ring where processes may first add up
    what they host.

    Args:
        collective: The processes, or their devices.
        shards: Who hosts what.
        parts: The values of this process's shards, (count,) each; all change.
        xp: Their namespace.
        bucket: How many bytes are worked on at a time.
    """
    if shards.added_at_home:
        add_up(parts)
        parts = parts[:1]
    count, itemsize = parts[0].shape[0], parts[0].itemsize
    step = max(1, bucket // itemsize)
    for start in range(0, count, step):
        buffers: list[Array] = [part[start : start + step] for part in parts]
        if collective.size > 1:
            _add_bucket(collective, shards, buffers, xp)
        buffers[0] /= shards.count


def fast_mean(collective: Collective, shards: Shards, parts: Sequence[Array]) -> None:
    """Replace the first part by the mean over all shards, as the library adds it fastest.

    All processes get the same bits; another number of processes, or another library, may give
    others.
    """
    add_up(parts)
    mean: Array = parts[0]
    if collective.size > 1:
        collective.add(mean)
    mean /= shards.count


def half_mean(
    collective: Collective,
    shards: Shards,
    parts: Sequence[np.ndarray],
    bucket: int = BUCKET,
) -> None:
    """Replace the first part by the mean over all shards; it travels in half precision.

    Each process adds up what it hosts, and a slice of the whole for all processes, in the precision
    of the net; only what it sends is rounded, once each way. All processes get the same bits,
    another number of processes others.
    """
    add_up(parts)
    mean, rank, size = parts[0], collective.rank, collective.size
    step = max(1, bucket // mean.itemsize)
    for start in range(0, mean.shape[0], step) if size > 1 else ():
        buffer = mean[start : start + step]
        bounds = [buffer.size * r // size for r in range(size + 1)]
        slices = [buffer[a:b] for a, b in pairwise(bounds)]
        nothing = np.empty(0, np.float16)
        sent = [nothing if r == rank else packed(one) for r, one in enumerate(slices)]
        many = slices[rank].size + HEAD
        received = collective.exchange(sent, [0 if r == rank else many for r in range(size)])
        terms = [slices[rank] if r == rank else np.empty_like(slices[rank]) for r in range(size)]
        for r in range(size):
            if r != rank:
                unpacked(received[r], terms[r])
        add_up(terms)
        places = [bound + HEAD * r for r, bound in enumerate(bounds)]
        sums = np.empty(places[-1], np.float16)
        collective.collect(packed(terms[0]), sums, places)
        for r, one in enumerate(slices):
            unpacked(sums[places[r] : places[r + 1]], one)
    mean /= shards.count


def _add_bucket(collective: Collective, shards: Shards, buffers: Sequence[Array], xp: Any) -> None:
    """Replace the first buffer by the sum of all processes' buffers."""
    size, rank, count = collective.size, collective.rank, buffers[0].shape[0]
    bounds = [count * r // size for r in range(size + 1)]
    slices = [slice(a, b) for a, b in pairwise(bounds)]
    mine = bounds[rank + 1] - bounds[rank]
    many = [1 if shards.added_at_home else len(shards.of(r)) for r in range(size)]
    to_send = [xp.concat([buffer[s] for buffer in buffers]) for s in slices]
    received = collective.exchange(to_send, [mine * m for m in many])
    ordered: dict[int, Array] = {}
    for source, array in enumerate(received):
        for number, part in zip(
            shards.of(source), xp.reshape(array, (many[source], mine)), strict=False
        ):
            ordered[number] = part
    terms = [ordered[number] for number in sorted(ordered)]
    add_up(terms)
    collective.collect(terms[0], buffers[0], bounds)
