"""Pointwise convolution, of windows of one pixel, of images that are normalised on the way.

The pixels are the rows of a matrix and the filters the columns of another. A few rows at a time are
multiplied with factors, offset, rectified, and noted in a core's first cache, from where they are
multiplied with all filters: what a normalisation before the convolution computes is never written
to memory. Without one before it, the library's code is as fast; but that does not write pixels that
lie apart, as those of a range of channels of a wider image do, and has no limits that keep NaN.
"""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.backends.kernels.pointwise.schedule import PANEL, WIDEST, PointwiseSchedule
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.step import Declined

__all__ = ["limits_pay", "plan_pointwise"]

FLOAT_BYTES = 4

MOST_WASTE = 1.1
"""Pixels that are computed, as a multiple of those there are, up to which it pays."""

MOST_SPARE = 5
"""Products for each number beyond those that it needs, up to which it pays to have limits: the
library computes fewer, but has a pass over memory after them."""


def plan_pointwise(op: ops.Conv, x: ops.Shape, y: ops.Shape, tuning: Tuning) -> PointwiseSchedule:
    """Return the schedule of a pointwise convolution.

    Args:
        op: The convolution.
        x: Its input's shape, (N, C, H, W).
        y: Its output's shape.
        tuning: Target of the kernels, and the choice of kernels.

    Raises:
        Declined: The windows are unsupported, or the convolution is too small.
    """
    if not tuning.width or tuning.pointwise == "never":
        message = "our own pointwise convolution is off"
        raise Declined(message)
    if not op.is_pointwise or len(op.kernel) != 2:
        message = "pointwise convolution takes windows of one pixel, without strides, in one group"
        raise Declined(message)
    parts = PointwiseSchedule(x, y, tuning)
    fewest = PANEL * tuning.width
    if parts.pixels < parts.rows or not tuning.width <= x[1] <= WIDEST or y[1] < fewest:
        message = (
            f"{parts.pixels} pixels, {x[1]} channels to {y[1]}; pointwise convolution takes "
            f"{parts.rows} pixels or more, {tuning.width} to {WIDEST} channels to {fewest} or more"
        )
        raise Declined(message)
    if tuning.pointwise == "auto":
        _check_gain(parts)
    return parts


def limits_pay(parts: PointwiseSchedule) -> bool:
    """Return whether results within limits are computed faster than by the library and a pass."""
    return parts.tuning.pointwise == "always" or parts.spare <= MOST_SPARE


def _check_gain(parts: PointwiseSchedule) -> None:
    """Decline what the library does faster, though what it reads must be written before.

    Raises:
        Declined: The filters are too large, or the last pixels waste too much time.
    """
    filter_bytes = parts.x[1] * parts.y[1] * FLOAT_BYTES
    if filter_bytes > parts.tuning.pixel_filter_bytes:
        message = (
            f"filters of {filter_bytes >> 10} KiB, which are read for each few pixels; pointwise "
            f"convolution pays up to {parts.tuning.pixel_filter_bytes >> 10} KiB"
        )
        raise Declined(message)
    if parts.waste > MOST_WASTE:
        message = (
            f"{parts.pixels} pixels, {parts.rows} at a time; pointwise convolution pays where "
            "these divide well"
        )
        raise Declined(message)
