"""Distribution of the values of a blob: range, mean, norm and a histogram."""

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from demitasse.backends.arrays import Array
from demitasse.blob.blob import Blob
from demitasse.memory import Head

BINS = 30  # bars of a histogram
MOST_SAMPLED = 1 << 16  # largest sample of a histogram; larger blobs are sampled at equal distances


@dataclass(frozen=True)
class Distribution:
    """Distribution of values.

    Attributes:
        sampled: Number of values in the histogram.
        low: The smallest value; NaN if a value is NaN.
        norm: Square root of the sum of squares.
        nonfinite: Number of sampled values that are NaN or infinite.
        edges: Edges of the histogram's bars, rising; one more than bars.
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
    """Return the distribution of a blob's data or gradient, on its newest side; None if empty."""
    memory = blob.diff_memory if diff else blob.data_memory
    if memory.cleared or not blob.count:
        return None
    backend = blob.device.backend
    on_host = blob.device.shares_host or memory.head is Head.HEAD_AT_CPU
    with nullcontext() if on_host else backend.device_scope():
        xp: Any = np if on_host else backend.xp
        flat = (memory.cpu_data() if on_host else memory.gpu_data())[: blob.count]
        step = math.ceil(blob.count / MOST_SAMPLED)
        sample = flat[::step]
        numbers = _numbers(xp, flat) if blob.dtype.startswith("float") else None
        if not on_host:
            sample = backend.to_host(sample)
    values = np.asarray(sample, dtype=np.float64)
    low, high, mean, norm = numbers or _numbers(np, values)
    finite = values[np.isfinite(values)]
    counts, edges = np.histogram(finite, BINS) if finite.size else (np.zeros(0, int), np.zeros(0))
    return Distribution(
        count=blob.count, sampled=values.size, low=low, high=high, mean=mean, norm=norm,
        nonfinite=values.size - finite.size, edges=tuple(edges.tolist()),
        counts=tuple(counts.tolist()),
    )  # fmt: skip


def _numbers(xp: Any, flat: Array) -> tuple[float, float, float, float]:
    """Return the smallest value, the largest, the mean and the norm."""
    with np.errstate(all="ignore"):  # values may be infinite, or overflow
        square = xp.sum(flat * flat)
        return float(xp.min(flat)), float(xp.max(flat)), float(xp.mean(flat)), float(square) ** 0.5
