"""What the processor can do: a large matrix product and a large copy.

The product is numpy's; the copy reads and writes.
"""

import math
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from peers.cases import Case

__all__ = ["Measured"]

SIDE = 4096
BYTES = 1 << 28


class Measured:
    """Like ``peers.engines.Engine``; a pass is a product and a copy, whose speeds are kept."""

    def __init__(self, case: Case, folder: Path, threads: int) -> None:
        del folder
        side = SIDE // case.scale
        rng = np.random.default_rng(0)
        self.a, self.b = (rng.random((side, side), np.float32) for _ in range(2))
        self.out = np.empty((side, side), np.float32)
        self.source, self.target = (np.ones(BYTES // 4 // case.scale, np.float32) for _ in "ab")
        self.pool, self.threads = ThreadPoolExecutor(threads), threads
        self.about = {"product": "numpy matmul", "side": side}
        self.speeds: list[tuple[float, float]] = []

    def check(self) -> dict[str, Any]:
        self._product()
        some = slice(None, None, max(1, len(self.a) // 8))
        return {"apart": np.abs(self.out[some] - self.a[some] @ self.b).max()}

    def run(self) -> None:
        start = time.perf_counter()
        self._product()
        middle = time.perf_counter()
        list(self.pool.map(self._copy, range(self.threads)))
        end = time.perf_counter()
        flop, moved = 2 * len(self.a) ** 3, 2 * self.source.nbytes
        self.speeds.append((flop / (middle - start) / 1e9, moved / (end - middle) / 1e9))

    def _product(self) -> None:
        np.matmul(self.a, self.b, out=self.out)

    def _copy(self, part: int) -> None:
        size = math.ceil(self.source.size / self.threads)
        here = slice(part * size, (part + 1) * size)
        np.copyto(self.target[here], self.source[here])
