"""Separable convolution: a depthwise and a pointwise convolution, fused into one pass.

A few rows of depthwise outputs at a time stay in a core's own cache and are multiplied with all
filters. The intermediate image, as large as the input, is never written to memory. The sums have
the bits of the separate kernels. An image may be added to the result, as at the end of a block of
MobileNet V2.
"""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.backends.kernels.depthwise import plan_depthwise
from demitasse.backends.kernels.separable.schedule import WIDTHS, SeparableSchedule
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.step import Declined

__all__ = ["plan_separable"]

MOST_WASTE = 1.06
"""Greatest load imbalance (maximum over mean) up to which the kernel pays."""

MOST_SPARE = 0.6
"""Vectors of filters for each pixel, computed beyond its share, up to which it pays: what lies
between, which is not written to memory, takes as long."""


def plan_separable(depthwise: ops.Conv, pointwise: ops.Conv, tuning: Tuning) -> SeparableSchedule:
    """Return the schedule of a depthwise convolution and the following pointwise convolution.

    Args:
        depthwise: The first.
        pointwise: The second, whose bottom is the first one's top.
        tuning: Target of the kernels, and the choice of kernels.

    Raises:
        Declined: They are others, or it would not be faster.
    """
    if not tuning.width or tuning.separable == "never":
        message = "our own separable convolution is off"
        raise Declined(message)
    if depthwise.after or not pointwise.is_pointwise or len(pointwise.kernel) != 2:
        message = "a depthwise convolution runs as one with windows of one pixel in one group"
        raise Declined(message)
    strips = plan_depthwise(depthwise, depthwise.bottom, depthwise.top, tuning)
    blocks = SeparableSchedule(strips, pointwise.top)
    channels, fewest = blocks.channels, tuning.width
    if channels > WIDTHS[-1] or pointwise.top[1] < fewest or not blocks.fits:
        message = (
            f"images of {strips.y[2:]}, {channels} channels to {pointwise.top[1]}; separable "
            f"convolution takes {blocks.pixels} pixels or more for each thread, up to "
            f"{WIDTHS[-1]} channels to {fewest} or more"
        )
        raise Declined(message)
    spare = (blocks.waste - 1) * pointwise.top[1]
    wastes = blocks.waste > MOST_WASTE and spare > MOST_SPARE * tuning.width
    if tuning.separable == "auto" and wastes:
        message = (
            f"images of {strips.y[2:]}, {blocks.pixels} pixels at a time, for {tuning.threads} "
            "threads; separable convolution pays where these divide well"
        )
        raise Declined(message)
    return blocks
