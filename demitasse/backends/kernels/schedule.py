"""The part that schedules of convolutions have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from demitasse.backends import ops
from demitasse.backends.kernels.tuning import Tuning


@dataclass(frozen=True)
class ConvSchedule:
    """A convolution over two axes, by a kernel of one kind.

    Attributes:
        kernel: Name of the kind.
        op: The convolution.
        x: The images' shape, (N, C, H, W).
        y: The outputs' shape, (N, M, OH, OW).
        tuning: The kernels' vectors and threads, and how much they work on at a time.
    """

    kernel: ClassVar[str]

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
        return f"{self.kernel} llvm:{self.tuning.instructions}"
