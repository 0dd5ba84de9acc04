"""Engine: working memory that a thread's Steps take turns with, so that it stays in the caches."""

from __future__ import annotations

import math
import threading

import numpy as np

__all__ = ["Engine"]


class _Arrays(threading.local):
    def __init__(self) -> None:
        self.by_name: dict[tuple[str, str], np.ndarray] = {}


class Engine:
    """Engine of the Steps on the host."""

    def __init__(self) -> None:
        self._arrays = _Arrays()

    @property
    def nbytes(self) -> int:
        """Bytes of this thread's working memory."""
        return sum(array.nbytes for array in self._arrays.by_name.values())

    def scratch(self, name: str, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """Return an array with arbitrary contents, good until this thread asks for ``name`` again.

        Shapes: ``shape``, C order.
        """
        count, arrays = math.prod(shape), self._arrays.by_name
        found = arrays.get((name, dtype))
        if found is None or found.size < count:
            found = arrays[name, dtype] = np.empty(count, dtype)
        return found[:count].reshape(shape)
