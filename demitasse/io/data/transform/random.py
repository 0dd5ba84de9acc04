"""Random numbers of records: a function of seed, layer name and record number.

Therefore prefetching, threads, the number of processes and resuming do not change them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from demitasse.backends.random import bits, stream_of

__all__ = ["WORDS", "RandomWords", "RecordRandom", "words_of"]

WORDS = 4
"""Random words per record for crop and mirror."""


class RandomWords(Protocol):
    """Returns random words of records: a ``RecordRandom``, or a substitute in tests."""

    def __call__(self, first: int, count: int, step: int = 1) -> np.ndarray:
        """Return the words of records first, first + step, ... Shape: (count, words), uint32."""


class RecordRandom:
    """Random words of the records of one layer.

    Args:
        seed: Random seed of the net, or a function that returns the seed.
        name: Name of the layer.
        purpose: Purpose of the words; each purpose has its own words.
        words: Words per record.
    """

    def __init__(
        self,
        seed: int | Callable[[], int],
        name: str,
        purpose: str = "records",
        words: int = WORDS,
    ) -> None:
        self._seed, self._stream, self._words = seed, stream_of(f"{name}/{purpose}"), words

    def __call__(self, first: int, count: int, step: int = 1) -> np.ndarray:
        """Return the words of records first, first + step, ... Shape: (count, words), uint32."""
        seed = self._seed() if callable(self._seed) else self._seed
        span = step * (count - 1) + 1
        words = bits(seed, self._stream, 0, self._words * span, self._words * first)
        return words.reshape(span, self._words)[::step]


def words_of(
    random: RandomWords, count: int, first: int, step: int, places: Sequence[int] | None
) -> np.ndarray:
    """Return the words of records.

    Args:
        random: Returns words by record number.
        count: Number of records.
        first: Number of the first record.
        step: Difference of neighbouring record numbers.
        places: Indices of the records, counted from ``first``; None for 0, 1, 2, ...

    Returns:
        Shape: (count, words), uint32.
    """
    if places is None:
        return random(first, count, step)
    return random(first, places[-1] + 1, step)[list(places)]
