"""Histograms in the facts of the event ``distributions``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Histogram", "histograms"]

NUMBERS = ("low", "high", "mean", "norm")

MOST_BARS = 1000
"""Bars of a histogram that is read from a file."""


@dataclass(frozen=True)
class Histogram:
    """How the values of a parameter, or of its gradient, are distributed.

    Attributes:
        low: The smallest value.
        high: The largest.
        mean: Their mean.
        norm: The square root of the sum of their squares.
        count: How many there are.
        edges: Where the bars begin and end; one more than bars, rising.
        counts: How many of the sampled values fall into each bar.
    """

    low: float
    high: float
    mean: float
    norm: float
    count: int
    edges: tuple[float, ...]
    counts: tuple[int, ...]

    def quantile(self, share: float) -> float:
        """Return the value below which a share of the sampled values lies."""
        wanted, below = share * sum(self.counts), 0.0
        for count, (begin, end) in zip(self.counts, pairwise(self.edges), strict=True):
            if count and wanted <= below + count:
                return begin + (end - begin) * (wanted - below) / count
            below += count
        return self.edges[-1]


def histograms(facts: Mapping[str, object]) -> Iterator[tuple[str, Histogram]]:
    """Yield histograms as ``weights/LAYER/INDEX`` and ``gradients/LAYER/INDEX``.

    What is no histogram is passed over: facts may come from a file.
    """
    parameters = facts.get("parameters")
    for name, about in parameters.items() if isinstance(parameters, Mapping) else ():
        for what in ("weights", "gradients"):
            found = about.get(what) if isinstance(about, Mapping) else None
            made = _histogram(found) if isinstance(found, Mapping) else None
            if made is not None:
                yield f"{what}/{name}", made


def _histogram(found: Mapping[str, object]) -> Histogram | None:
    try:
        low, high, mean, norm = (float(str(found[name])) for name in NUMBERS)
        edges = _numbers(found["edges"])
        counts = [int(number) for number in _numbers(found["counts"])]
        count = int(str(found["count"]))
    except (KeyError, ValueError, OverflowError):
        return None
    rising = all(begin <= end for begin, end in pairwise(edges))
    bars = 0 < len(counts) == len(edges) - 1 <= MOST_BARS and min(counts) >= 0 < sum(counts)
    if not rising or not bars:
        return None
    return Histogram(low, high, mean, norm, count, tuple(edges), tuple(counts))


def _numbers(value: object) -> list[float]:
    return [float(str(one)) for one in value] if isinstance(value, list | tuple) else []
