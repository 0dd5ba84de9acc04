"""Depthwise convolution: each channel is convolved with a filter of its own.

The vectors are channels. The sums of a few pixels stay in registers, and each is written once, with
its offset and rectifier. Input and output may lie differently: behind a first convolution, whose
outputs are in blocks of channels, oneDNN's code has them converted first.
"""

from __future__ import annotations

import math

from demitasse.backends import ops
from demitasse.backends.kernels.depthwise.schedule import DepthwiseSchedule
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.step import Declined

__all__ = ["plan_depthwise"]

MOST_TAPS = 25
"""Greatest number of taps of a window; kernels are unrolled over taps."""

WIDEST = 16
"""Greatest number of columns of a window, including dilation."""


def plan_depthwise(op: ops.Conv, x: ops.Shape, y: ops.Shape, tuning: Tuning) -> DepthwiseSchedule:
    """Return the schedule of a depthwise convolution.

    Args:
        op: The convolution.
        x: Its input's shape, (N, C, H, W).
        y: Its output's shape.
        tuning: Target of the kernels, and the choice of kernels.

    Raises:
        Declined: The convolution is not depthwise, not 2-D, or has large windows.
    """
    if not tuning.width or tuning.depthwise == "never":
        message = "our own depthwise convolution is off"
        raise Declined(message)
    if len(op.kernel) != 2 or not op.group == x[1] == y[1] or x[1] < tuning.width:
        message = (
            f"depthwise convolution takes two axes, {tuning.width} channels or more, each in a "
            "group of its own"
        )
        raise Declined(message)
    reach = (op.kernel[1] - 1) * op.dilation[1] + 1
    if math.prod(op.kernel) > MOST_TAPS or reach > WIDEST:
        message = (
            f"a window of {op.kernel}; depthwise convolution takes up to {MOST_TAPS} taps, over "
            f"{WIDEST} columns"
        )
        raise Declined(message)
    return DepthwiseSchedule(op, x, y, tuning)
