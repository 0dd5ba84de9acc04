"""In which order numbered items are visited, round after round.

The order of a round depends on a seed, a name and the round alone, so that a resumed run and every
rank find it again.
"""

from __future__ import annotations

from threading import Lock

import numpy as np

from demitasse.backends.random import bits, stream_of

__all__ = ["Order"]


class Order:
    """Visits ``size`` items again and again.

    Args:
        size: How many there are, at least 1.
        seed: Key of all random numbers of the net.
        name: Which order, e.g. the layer's name.
        shuffle: Whether each round has an order of its own.
    """

    def __init__(self, size: int, seed: int, name: str, *, shuffle: bool) -> None:
        self.size, self.shuffle = size, shuffle
        self._seed, self._stream = seed, stream_of(f"{name}/order")
        self._lock = Lock()  # several threads read images
        self._rounds: dict[int, np.ndarray] = {}

    def __getitem__(self, number: int) -> int:
        """Return the item that comes at ``number``, counted from 0 through all rounds."""
        round_, place = divmod(number, self.size)
        return int(self.of_round(round_)[place]) if self.shuffle else place

    def of_round(self, round_: int) -> np.ndarray:
        """Return the items of one round in order. Shape: (size,)."""
        if not self.shuffle:
            return np.arange(self.size)
        with self._lock:
            if round_ not in self._rounds:
                if len(self._rounds) > 1:  # two, since a batch may lie across the end of a round
                    del self._rounds[min(self._rounds)]
                keys = bits(self._seed, self._stream, round_, self.size)
                self._rounds[round_] = np.argsort(keys, kind="stable")
            return self._rounds[round_]
