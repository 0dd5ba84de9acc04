"""Histograms of weights and gradients, in the facts of the event ``distributions``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

NUMBERS = ("low", "high", "mean", "norm")

MOST_BINS = 1000
"""Bins of a histogram that is read from a file."""


@dataclass(frozen=True)
class Histogram:
    """Distribution of the values of a parameter, or of its gradient.

    Attributes:
        low: The smallest value.
        high: The largest value.
        mean: The mean.
        norm: The L2 norm.
        count: Number of values.
        edges: Edges of the bins, rising; one more than bins.
        counts: Number of sampled values in each bin.
    """

    low: float
    high: float
    mean: float
    norm: float
    count: int
    edges: tuple[float, ...]
    counts: tuple[int, ...]

    def quantile(self, share: float) -> float:
        """Return the value that a share of the sampled values is below."""
        wanted, below = share * sum(self.counts), 0.0
        for count, (begin, end) in zip(self.counts, pairwise(self.edges), strict=True):
            if count and wanted <= below + count:
                return begin + (end - begin) * (wanted - below) / count
            below += count
        return self.edges[-1]


def histograms(facts: Mapping[str, object]) -> Iterator[tuple[str, Histogram]]:
    """Yield histograms as ``weights/LAYER/INDEX`` and ``gradients/LAYER/INDEX``.

    Invalid histograms are skipped: facts may come from a file.
    """
    parameters = facts.get("parameters")
    for name, kinds in parameters.items() if isinstance(parameters, Mapping) else ():
        for kind in ("weights", "gradients"):
            values = kinds.get(kind) if isinstance(kinds, Mapping) else None
            histogram = _histogram(values) if isinstance(values, Mapping) else None
            if histogram is not None:
                yield f"{kind}/{name}", histogram


def _histogram(values: Mapping[str, object]) -> Histogram | None:
    try:
        low, high, mean, norm = (float(str(values[name])) for name in NUMBERS)
        edges = _numbers(values["edges"])
        counts = [int(number) for number in _numbers(values["counts"])]
        count = int(str(values["count"]))
    except (KeyError, ValueError, OverflowError):
        return None
    rising = all(begin <= end for begin, end in pairwise(edges))
    valid = 0 < len(counts) == len(edges) - 1 <= MOST_BINS and min(counts) >= 0 < sum(counts)
    if not rising or not valid:
        return None
    return Histogram(low, high, mean, norm, count, tuple(edges), tuple(counts))


def _numbers(value: object) -> list[float]:
    return [float(str(one)) for one in value] if isinstance(value, list | tuple) else []
