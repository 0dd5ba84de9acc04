"""One process: nobody to talk to."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from demitasse.training.distributed.communicator import Value

__all__ = ["Single"]


class Single:
    """The communicator of a process that is by itself."""

    rank, size, name = 0, 1, "one process"
    local_rank, timeout, in_threads = 0, math.inf, True

    def agree(self, note: bytes, patience: float = 1.0) -> list[bytes]:
        del patience
        return [note]

    def share(self, value: Value, patience: float = 1.0) -> Value:
        del patience
        return value

    def broadcast(self, array: np.ndarray) -> None:
        del array

    def exchange(self, parts: Sequence[np.ndarray], sizes: Sequence[int]) -> list[np.ndarray]:
        del sizes
        return list(parts)

    def collect(self, part: np.ndarray, whole: np.ndarray, bounds: Sequence[int]) -> None:
        del bounds
        whole[...] = part

    def add(self, array: np.ndarray) -> None:
        del array

    def abort(self, code: int) -> None:
        del code
