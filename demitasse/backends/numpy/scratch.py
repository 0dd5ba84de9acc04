"""Working memory that kernels of one thread take turns with, so that it stays in the caches."""

from __future__ import annotations

import math
import threading

import numpy as np

__all__ = ["scratch"]


class _Arrays(threading.local):
    def __init__(self) -> None:
        self.by_name: dict[tuple[str, str], np.ndarray] = {}


_arrays = _Arrays()


def scratch(name: str, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return an array with arbitrary contents, good until ``name`` is next asked for.

    Shapes: ``shape``, C order.
    """
    count = math.prod(shape)
    found = _arrays.by_name.get((name, dtype))
    if found is None or found.size < count:
        found = _arrays.by_name[name, dtype] = np.empty(count, dtype)
    return found[:count].reshape(shape)
