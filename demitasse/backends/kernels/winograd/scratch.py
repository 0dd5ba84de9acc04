"""The scratch memory of kernels over tiles."""

from __future__ import annotations

import numpy as np

from demitasse.backends.kernels.language.structs import EACH_CALL, Values
from demitasse.backends.kernels.language.words import FLOAT
from demitasse.backends.kernels.winograd.strips import StripFields
from demitasse.backends.kernels.winograd.tiling import Tiling, odd_lines

__all__ = ["Scratch"]


class Scratch:
    """Division of the scratch memory of a kernel over strips.

    Each thread has its own: for the copy of a strip in one stage, and in another for some filters
    and their values at the points. Behind them each chunk has its stack: the tiles of a block at
    all points, and their sums.

    Args:
        tiling: The convolution.

    Attributes:
        size: Elements that are needed.
        sums_bytes: Bytes from a stack's beginning to the output.
        points_bytes: Bytes from the beginning of a thread's, where filters are that it takes to the
            points, to their values there.
    """

    def __init__(self, tiling: Tiling) -> None:
        down, across = tiling.filtering
        columns = tiling.grid[1] * across.outputs + across.side
        copy = down.side * columns * tiling.width
        tiles, sums = (
            tiling.points * stride for stride in (tiling.tile_point_stride, tiling.sum_point_stride)
        )
        taps, points = _of_part(tiling)
        stage = max(copy, taps + points)
        private, stack = odd_lines(stage), odd_lines(tiles + sums)
        self._threads = tiling.threads * private
        self.size = self._threads + (1 if tiling.shared else tiling.chunks) * stack
        self.sums_bytes = FLOAT * tiles
        self.points_bytes = FLOAT * taps
        self._tiling = tiling
        self._bytes = {
            "private_bytes": FLOAT * private,
            "stack_bytes": FLOAT * stack,
        }

    def calls(self, stages: int) -> list[Values]:
        """Return values of the fields of strips for each call of a kernel, in order.

        Args:
            stages: Of a block of strips. Each is a call where all threads work on the same block.
        """
        tiling = self._tiling
        if not tiling.shared:
            return [self._values(0, range(stages))]
        blocks = -(-tiling.strips // tiling.strips_per_block)
        return [
            self._values(turn, range(stage, stage + 1))
            for turn in range(blocks)
            for stage in range(stages)
        ]

    def _values(self, turn: int, stages: range) -> Values:
        tiling = self._tiling
        return StripFields.values(
            strips=tiling.strips,
            strips_per_block=tiling.strips_per_block,
            chunks=tiling.chunks,
            shared=int(tiling.shared),
            turn=turn,
            first_stage=stages.start,
            end_stage=stages.stop,
            tile_rows=tiling.grid[0],
            tile_columns=tiling.grid[1],
            private=EACH_CALL,
            stacks=EACH_CALL,
            **self._bytes,
        )

    def divide(self, memory: np.ndarray) -> dict[str, np.ndarray]:
        """Return the threads' part of some memory, and the stacks'.

        Args:
            memory: At least :attr:`size` elements.

        Raises:
            ValueError: It is smaller.
        """
        if memory.size < self.size:
            message = f"{memory.size} elements of scratch memory were given; give {self.size}"
            raise ValueError(message)
        private, stacks = memory[: self._threads], memory[self._threads : self.size]
        return {"strips.private": private, "strips.stacks": stacks}


def _of_part(tiling: Tiling) -> tuple[int, int]:
    """Return elements of filters, and of their values, that a thread takes to the points."""
    if not (tiling.unpacked or tiling.stride > 1):
        return 0, 0
    part = tiling.part
    taps = part.channels * tiling.filtering.taps * tiling.stride**2 * tiling.width
    if tiling.stride > 1:  # all vectors of a panel at once, for one phase after the other
        taps *= tiling.panel
    return odd_lines(taps), tiling.points * part.point_stride
