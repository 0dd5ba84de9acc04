"""The scratch memory of kernels over tiles."""

from __future__ import annotations

import numpy as np

from demitasse.backends.arrays import address
from demitasse.backends.kernels.language.kernel import FLOAT
from demitasse.backends.kernels.winograd.tiling import Tiling, odd_lines

__all__ = ["Scratch"]


class Scratch:
    """How the scratch memory of a kernel over strips is divided; all Steps of a thread share it.

    Args:
        tiling: The convolution.

    Attributes:
        size: Elements that are needed.
        values: Of the fields that say how they are divided, and how the strips are.
    """

    def __init__(self, tiling: Tiling) -> None:
        side, step = len(tiling.matrices.input), tiling.matrices.outputs
        own = side * side * tiling.width
        copy = side * (tiling.grid[1] * step + side) * tiling.width
        data, sums = (tiling.points * count for count in (tiling.data, tiling.sums))
        private, stack = odd_lines(own + copy), odd_lines(data + sums)
        self.threads = tiling.threads * private
        self.size = self.threads + (1 if tiling.shared else tiling.lanes) * stack
        self.values = {
            "strips": tiling.strips, "block": tiling.block, "lanes": tiling.lanes,
            "shared": int(tiling.shared), "down": tiling.grid[0], "right": tiling.grid[1],
            "private_size": FLOAT * private, "stack_size": FLOAT * stack,
            "sums": FLOAT * data, "copy": FLOAT * own,
        }  # fmt: skip

    def at(self, memory: np.ndarray) -> tuple[int, int]:
        """Return where the threads' scratch begins in some memory, and where the lanes' does."""
        start = address(memory)
        return start, start + FLOAT * self.threads
