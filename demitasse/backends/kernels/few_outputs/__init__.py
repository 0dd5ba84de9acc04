"""Convolution to few output channels: which ones have a kernel, and their schedule."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from demitasse.backends import ops
from demitasse.backends.kernels.tuning import ConvSchedule, Tuning
from demitasse.backends.kernels.windows import RegisterTile, decline_many, plan_tile
from demitasse.backends.step import Declined

__all__ = ["FewOutputsSchedule", "plan_few_outputs"]


@dataclass(frozen=True)
class FewOutputsSchedule(ConvSchedule):
    """A convolution to few channels. Threads divide the rows of all images."""

    kernel: ClassVar[str] = "narrow"

    @cached_property
    def tile(self) -> RegisterTile:
        """Register tiles of a row of windows; the sums of a tile become one vector."""
        return plan_tile(self.y[3], self.width, self.op)


WIDEST = 11
"""Greatest number of taps of a window's row; kernels are unrolled over taps."""


def plan_few_outputs(
    op: ops.Conv, x: ops.Shape, y: ops.Shape, tuning: Tuning
) -> FewOutputsSchedule:
    """Return the schedule of a convolution with few output channels.

    Args:
        op: The convolution.
        x: Its input's shape, (N, C, H, W).
        y: Its output's shape.
        tuning: Target of the kernels, and the choice of kernels.

    Raises:
        Declined: Channels or windows are unsupported.
    """
    if not tuning.width or tuning.narrow == "never":
        message = "convolution to few channels is off"
        raise Declined(message)
    most = tuning.width // 2
    fits = len(op.kernel) == 2 and op.group == 1 and x[1] % tuning.width == 0 and y[1] <= most
    if not fits or max(op.kernel) == 1 or op.kernel[1] > WIDEST:
        message = (
            f"convolution to few channels takes whole vectors of {tuning.width} channels to up to "
            f"{most}, in one group, windows up to {WIDEST} wide"
        )
        raise Declined(message)
    lines = FewOutputsSchedule(op, x, y, tuning)
    decline_many(lines.tile, op)
    return lines
