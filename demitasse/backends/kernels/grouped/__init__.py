"""Convolution of small groups of channels, as of ResNeXt.

The vectors are the channels that are written, of one group or several; each of their numbers is
multiplied with one that its own group reads. Images lie as those of the convolutions of single
pixels around them, with their channels last or in blocks of a vector. oneDNN's code for groups of
less than a vector converts them to blocks of a group and back, or has no fast code, as for the
gradient of the filters.
"""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.backends.kernels.grouped.schedule import GroupedSchedule
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.kernels.windows import decline_many
from demitasse.backends.step import Declined

__all__ = ["plan_grouped"]

WIDEST = 11
"""Greatest number of taps of a window's row; kernels are unrolled over taps."""


def plan_grouped(op: ops.Conv, x: ops.Shape, y: ops.Shape, tuning: Tuning) -> GroupedSchedule:
    """Return the schedule of a convolution with small groups.

    Args:
        op: The convolution.
        x: Its input's shape, (N, C, H, W).
        y: Its output's shape.
        tuning: Target of the kernels, and the choice of kernels.

    Raises:
        Declined: Groups or windows are unsupported.
    """
    width = tuning.width
    if not width or tuning.grouped == "never":
        message = "our own convolution of groups is off"
        raise Declined(message)
    reads, writes = x[1] // op.group, y[1] // op.group
    shared = reads == writes and width % reads == 0
    fits = 1 < reads <= width <= y[1] and (shared or writes % width == 0)
    if len(op.kernel) != 2 or op.group == 1 or not fits or op.kernel[1] > WIDEST:
        message = (
            f"convolution of groups takes two axes, groups of 2 to {width} channels that divide a "
            f"vector, or are written as whole ones, and windows up to {WIDEST} wide"
        )
        raise Declined(message)
    parts = GroupedSchedule(op, x, y, tuning)
    decline_many(parts.tile, op)
    return parts
