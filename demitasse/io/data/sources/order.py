"""Order of numbered items, epoch by epoch.

The order of an epoch depends on a seed, a name and the number of the epoch only. So a resumed run
and every process compute the same order.
"""

from __future__ import annotations

from threading import Lock

import numpy as np

from demitasse.backends.random import bits, stream_of

__all__ = ["Order"]


class Order:
    """Permutation of ``size`` items per epoch.

    Args:
        size: Number of items, at least 1.
        seed: Random seed of the net.
        name: Name of the order, e.g. the layer's name.
        shuffle: Permute the items in each epoch; otherwise keep their order.
    """

    def __init__(self, size: int, seed: int, name: str, *, shuffle: bool) -> None:
        self.size, self.shuffle = size, shuffle
        self._seed, self._stream = seed, stream_of(f"{name}/order")
        self._lock = Lock()  # several threads read images
        self._rounds: dict[int, np.ndarray] = {}

    def __getitem__(self, number: int) -> int:
        """Return the item at position ``number``, counted from 0 over all epochs."""
        round_, place = divmod(number, self.size)
        return int(self.of_round(round_)[place]) if self.shuffle else place

    def of_round(self, round_: int) -> np.ndarray:
        """Return the items of one epoch in order. Shape: (size,)."""
        if not self.shuffle:
            return np.arange(self.size)
        with self._lock:
            if round_ not in self._rounds:
                if len(self._rounds) > 1:  # a batch may span two epochs
                    del self._rounds[min(self._rounds)]
                keys = bits(self._seed, self._stream, round_, self.size)
                self._rounds[round_] = np.argsort(keys, kind="stable")
            return self._rounds[round_]
