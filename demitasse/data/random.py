"""Random numbers of the data path: each record has its own, whoever reads it and when.

What happens to record k depends on the seed, the layer's name and k alone. So prefetching, threads,
the number of ranks and a resumed run change nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from demitasse.backends.random import bits, stream_of

__all__ = ["WORDS", "RecordRandom"]

WORDS = 4
"""Random words each record has."""


class RecordRandom:
    """The random words of the records that one layer reads.

    Args:
        seed: Key of all random numbers of the net, or what to ask for it.
        name: The layer's name.
    """

    def __init__(self, seed: int | Callable[[], int], name: str) -> None:
        self._seed, self._stream = seed, stream_of(f"{name}/records")

    def __call__(self, first: int, count: int, step: int = 1) -> np.ndarray:
        """Return the words of records first, first + step, ... Shape: (count, 4), uint32."""
        seed = self._seed() if callable(self._seed) else self._seed
        span = step * (count - 1) + 1
        words = bits(seed, self._stream, 0, WORDS * span, WORDS * first)
        return words.reshape(span, WORDS)[::step]
