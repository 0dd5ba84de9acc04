"""Random numbers of the data path: each record has its own, whoever reads it and when.

What happens to record k depends on the seed, the layer's name and k alone. So prefetching, threads,
the number of ranks and a resumed run change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from demitasse.backends.random import bits, stream_of

__all__ = ["WORDS", "RandomWords", "RecordRandom", "words_of"]

WORDS = 4
"""Random words of each record for cropping and mirroring."""


class RandomWords(Protocol):
    """Where random numbers come from: a ``RecordRandom``, or what a test makes up."""

    def __call__(self, first: int, count: int, step: int = 1) -> np.ndarray:
        """Return the words of records first, first + step, ... Shape: (count, words), uint32."""


class RecordRandom:
    """The random words of the records that one layer reads.

    Args:
        seed: Key of all random numbers of the net, or what to ask for it.
        name: The layer's name.
        purpose: What the words are for; each purpose has words of its own.
        words: How many words a record has.
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
    """Return the words of some records.

    Args:
        random: Where they come from.
        count: How many records there are.
        first: Number of the first one.
        step: Distance from one record's number to the next one's.
        places: Which of the records from ``first`` on are meant; None for 0, 1, 2, ...

    Returns:
        Shape: (count, words), uint32.
    """
    if places is None:
        return random(first, count, step)
    return random(first, places[-1] + 1, step)[list(places)]
