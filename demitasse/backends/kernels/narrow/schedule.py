"""Schedules of convolutions to few channels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from demitasse.backends import ops
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.kernels.windows import Turn, turn_of

__all__ = ["Lines"]


@dataclass(frozen=True)
class Lines:
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
    def turn(self) -> Turn:
        """Register tiles of a row of windows; the sums of a tile become one vector."""
        return turn_of(self.y[3], self.width, self.op)
