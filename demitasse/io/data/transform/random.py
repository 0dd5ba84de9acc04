"""Random numbers of records: a function of seed, layer name and record number.

Therefore prefetching, threads, the number of processes and resuming do not change them. In SSD's
augmentation every choice has its own random word, so an additional field in a prototxt does not
change the other choices.
"""

from collections.abc import Callable, Sequence
from enum import IntEnum

import numpy as np

from demitasse.backends.random import bits, stream_of

CROP_WORDS = 4  # random words per record for crop and mirror


class RecordRandom:
    """Random words of the records of one layer.

    Each ``purpose`` has its own words. The seed may be a function that returns the seed.
    """

    def __init__(
        self, seed: int | Callable[[], int], name: str, purpose: str = "records",
        words: int = CROP_WORDS,
    ) -> None:  # fmt: skip
        self._seed, self._stream, self._words = seed, stream_of(f"{name}/{purpose}"), words

    def __call__(self, first: int, count: int, step: int = 1) -> np.ndarray:
        """Return the words of records first, first + step, ... Shape: (count, words), uint32."""
        seed = self._seed() if callable(self._seed) else self._seed
        span = step * (count - 1) + 1
        words = bits(seed, self._stream, 0, self._words * span, self._words * first)
        return words.reshape(span, self._words)[::step]


def words_of(
    random: RecordRandom, count: int, first: int, step: int, places: Sequence[int] | None
) -> np.ndarray:
    """Return words, (count, words), uint32, of records ``first + step * place``, or of all."""
    if places is None:
        return random(first, count, step)
    return random(first, places[-1] + 1, step)[list(places)]


Choice = IntEnum(
    "Choice",
    "ORDER BRIGHTNESS BRIGHTNESS_DELTA CONTRAST CONTRAST_FACTOR SATURATION SATURATION_FACTOR HUE "
    "HUE_DELTA CHANNELS CHANNELS_ORDER EXPAND EXPAND_RATIO EXPAND_TOP EXPAND_LEFT RESIZE "
    "INTERPOLATION NOISE PIXELS SAMPLES SAMPLE RANDOM_SIZE RANDOM_INTERPOLATION",
    start=0,
)
"""Random choices; the value is the index of the random word."""

AUGMENT_WORDS = 24  # random words per record: more than there are choices, as a reserve


class Draws:
    """Random choices of one record, from its random words. Shape: (24,), uint32."""

    def __init__(self, words: np.ndarray) -> None:
        self._words = words

    def share(self, choice: Choice) -> float:
        """Return a number from 0 to less than 1."""
        return int(self._words[choice]) / 2.0**32

    def happens(self, choice: Choice, probability: float) -> bool:
        """Return True with the given probability; never for 0, always for 1."""
        return self.share(choice) < probability

    def between(self, choice: Choice, low: float, high: float) -> float:
        """Return a number from ``low`` to ``high``."""
        return low + (high - low) * self.share(choice)

    def one_of(self, choice: Choice, count: int) -> int:
        """Return a number from 0 to ``count`` - 1."""
        return int(self.share(choice) * count)

    def shares(self, choice: Choice, count: int) -> np.ndarray:
        """Return ``count`` numbers from 0 to less than 1. Shape: (count,)."""
        shares: np.ndarray = bits(int(self._words[choice]), int(choice), 0, count) / 2.0**32
        return shares

    def indices(self, choice: Choice, count: int, size: int) -> np.ndarray:
        """Return ``count`` numbers from 0 to ``size`` - 1, with repetition. Shape: (count,)."""
        words = bits(int(self._words[choice]), int(choice), 0, count)
        return (words.astype(np.uint64) * np.uint64(size)) >> np.uint64(32)
