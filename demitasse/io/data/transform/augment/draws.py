"""Random numbers of one record's augmentation.

Every choice has its own random word, so an additional field in a prototxt does not change the
other choices.
"""

from __future__ import annotations

from enum import IntEnum, auto

import numpy as np

from demitasse.backends.random import bits

__all__ = ["WORDS", "Choice", "Draws"]


class Choice(IntEnum):
    """Random choices; the value is the index of the random word."""

    ORDER = 0
    BRIGHTNESS = auto()
    BRIGHTNESS_DELTA = auto()
    CONTRAST = auto()
    CONTRAST_FACTOR = auto()
    SATURATION = auto()
    SATURATION_FACTOR = auto()
    HUE = auto()
    HUE_DELTA = auto()
    CHANNELS = auto()
    CHANNELS_ORDER = auto()
    EXPAND = auto()
    EXPAND_RATIO = auto()
    EXPAND_TOP = auto()
    EXPAND_LEFT = auto()
    RESIZE = auto()
    INTERPOLATION = auto()
    NOISE = auto()
    PIXELS = auto()
    SAMPLES = auto()
    SAMPLE = auto()


WORDS = 24
"""Random words per record: more than there are choices, as a reserve."""


class Draws:
    """Random choices of one record.

    Args:
        words: Random words of the record. Shape: (24,), uint32.
    """

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

    def places(self, choice: Choice, count: int, size: int) -> np.ndarray:
        """Return ``count`` numbers from 0 to ``size`` - 1, with repetition. Shape: (count,)."""
        words = bits(int(self._words[choice]), int(choice), 0, count)
        return (words.astype(np.uint64) * np.uint64(size)) >> np.uint64(32)
