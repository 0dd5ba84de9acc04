"""How the values of a blob are distributed: ends, mean, norm and a histogram."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from demitasse.backends.arrays import Array
from demitasse.blob.blob import Blob
from demitasse.memory import Head, SyncedMemory

__all__ = ["Distribution", "distribution"]

BINS = 30
"""Bars of a histogram."""

MOST_SAMPLED = 1 << 16
"""Values that a histogram is made of; of more, as many are taken at equal distances."""


@dataclass(frozen=True)
class Distribution:
    """How values are distributed.

    Attributes:
        count: How many values there are.
        sampled: How many of them the histogram is made of.
        low: The smallest; NaN where one is NaN.
        high: The largest.
        mean: Their mean.
        norm: The square root of the sum of their squares.
        nonfinite: How many of the sampled values are NaN or infinite.
        edges: Where the bars of the histogram begin and end; one more than bars, rising.
        counts: How many sampled values fall into each bar.
    """

    count: int
    sampled: int
    low: float
    high: float
    mean: float
    norm: float
    nonfinite: int
    edges: tuple[float, ...]
    counts: tuple[int, ...]


def distribution(blob: Blob, *, diff: bool = False) -> Distribution | None:
    """Return how the data of a blob, or its gradient, are distributed; None where it has none.

    Ends, mean and norm are computed where the values are newest. Of a device with a memory of its
    own no more than the sample comes to the host.
    """
    memory = blob.diff_memory if diff else blob.data_memory
    if memory.cleared or not blob.count:
        return None
    with _newest(blob, memory) as (xp, flat):
        step = math.ceil(blob.count / MOST_SAMPLED)
        sample = flat[::step]
        numbers = _numbers(xp, flat) if blob.dtype.startswith("float") else None
        if xp is not np:
            sample = blob.device.backend.to_host(sample)
    values = np.asarray(sample, dtype=np.float64)
    low, high, mean, norm = numbers or _numbers(np, values)
    finite = values[np.isfinite(values)]
    counts, edges = np.histogram(finite, BINS) if finite.size else (np.zeros(0, int), np.zeros(0))
    return Distribution(
        count=blob.count,
        sampled=values.size,
        low=low,
        high=high,
        mean=mean,
        norm=norm,
        nonfinite=values.size - finite.size,
        edges=tuple(edges.tolist()),
        counts=tuple(counts.tolist()),
    )


@contextmanager
def _newest(blob: Blob, memory: SyncedMemory) -> Iterator[tuple[Any, Array]]:
    """Yield a namespace and the values where they are newest. Shape: (count,)."""
    if blob.device.shares_host or memory.head is Head.HEAD_AT_CPU:
        yield np, memory.cpu_data()[: blob.count]
        return
    backend = blob.device.backend
    with backend.here():
        yield backend.xp, memory.gpu_data()[: blob.count]


def _numbers(xp: Any, flat: Array) -> tuple[float, float, float, float]:
    """Return the smallest value, the largest, the mean and the norm."""
    with np.errstate(all="ignore"):  # of what is infinite, or nearly so
        square = xp.sum(flat * flat)
        return float(xp.min(flat)), float(xp.max(flat)), float(xp.mean(flat)), float(square) ** 0.5
