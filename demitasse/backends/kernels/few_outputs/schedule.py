"""Schedules of convolutions to few channels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from demitasse.backends import ops
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.kernels.windows import RegisterTile, plan_tile

__all__ = ["FewOutputsSchedule"]


@dataclass(frozen=True)
class FewOutputsSchedule:
    """A convolution to few channels. Threads divide the rows of all images.

    Attributes:
        op: The convolution, over two axes and in one group.
        x: The images' shape, (N, C, H, W).
        y: The outputs' shape, (N, M, OH, OW).
        tuning: The kernel's vectors and threads.
    """

    op: ops.Conv
    x: tuple[int, ...]
    y: tuple[int, ...]
    tuning: Tuning

    @property
    def width(self) -> int:
        """Channels of a vector."""
        return self.tuning.width

    @property
    def code(self) -> str:
        """Name of the code, with the processor's instructions."""
        return f"narrow llvm:{self.tuning.instructions}"

    @cached_property
    def tile(self) -> RegisterTile:
        """Register tiles of a row of windows; the sums of a tile become one vector."""
        return plan_tile(self.y[3], self.width, self.op)
