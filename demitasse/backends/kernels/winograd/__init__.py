"""Winograd's convolution: half to a sixth of the multiplications of the definition.

Images are cut into overlapping tiles. Transformed tiles and filters are multiplied and summed over
the channels: a product of matrices for each transform position. The kernels do all steps for a few
tiles at a time, whose values stay in a core's own cache. Rounding errors are one to five times
those of direct convolution.
"""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.kernels.winograd.matrices import filtering, has_filtering
from demitasse.backends.kernels.winograd.schedule import STEP, WinogradSchedule, pays
from demitasse.backends.step import Declined

__all__ = ["can_pool_tiles", "plan_winograd"]

STRIDED = {(4, 4), (5, 5), (6, 6)}
"""Filters of stride 2. Those of 3x3 would gain nothing; those of 5x5 have zeros for a sixth row and
column."""

POOLED = (2, 2)
"""Windows that can be pooled along, where a tile has whole ones of them."""


def plan_winograd(
    op: ops.Conv, x: ops.Shape, y: ops.Shape, tuning: Tuning, *, training: bool
) -> WinogradSchedule:
    """Return the schedule of a Winograd convolution.

    Args:
        op: The convolution.
        x: Its input's shape, (N, C, H, W).
        y: Its output's shape.
        tuning: Target of the kernels, and the choice of tiles.
        training: Whether filters change between passes.

    Raises:
        Declined: The convolution is unsupported, or direct convolution costs less.
    """
    if not tuning.width or tuning.winograd == "never":
        message = "winograd is off"
        raise Declined(message)
    strided = (
        training
        and "winograd_strided" not in tuning.without
        and _is_strided(op, x, y, tuning.width)
    )
    if not strided and not _is_plain(op):
        message = (
            "winograd takes filters of 1, 2, 3, 5, 7 rows and columns, or 9 in one direction, of "
            "stride 1; in training 4x4, 5x5 and 6x6 of stride 2, on whole vectors of "
            f"{tuning.width} channels"
        )
        raise Declined(message)
    if min(x[1], y[1]) < tuning.width:
        message = f"{x[1]} and {y[1]} channels; winograd takes {tuning.width} or more"
        raise Declined(message)
    stride = STEP if strided else 1
    tiling = WinogradSchedule(
        filtering=filtering(tuple(-(-taps // stride) for taps in op.kernel)),
        images=x[0],
        channels=x[1] * stride**2,
        size=(x[2], x[3]),
        filters=y[1],
        groups=op.group,
        pad=(op.pad[0], op.pad[1]),
        output=(y[2], y[3]),
        tuning=tuning,
        stride=stride,
        window=op.kernel[0],
    )
    if tuning.winograd == "auto" and not pays(tiling, training=training):
        message = "winograd would cost more than the definition in this shape"
        raise Declined(message)
    return tiling


def _is_plain(op: ops.Conv) -> bool:
    """Return whether windows are one pixel apart, and of rows and columns that tiles take."""
    pads = all(pad < taps for pad, taps in zip(op.pad, op.kernel, strict=True))
    return has_filtering(op.kernel) and pads and {*op.stride, *op.dilation} == {1}


def _is_strided(op: ops.Conv, x: ops.Shape, y: ops.Shape, width: int) -> bool:
    """Return whether the windows are two pixels apart, and twice two taps high and wide."""
    windows = op.kernel in STRIDED and set(op.stride) == {STEP} and set(op.dilation) == {1}
    pads = max(op.pad) <= (op.kernel[0] - 1) // STEP * STEP
    whole = not (x[1] % width or y[1] % width)
    return windows and pads and whole and op.group == 1


def can_pool_tiles(tiling: WinogradSchedule, pool: ops.Pool) -> bool:
    """Return whether MAX pooling can follow a convolution in the same kernel."""
    whole = not any(each.outputs % 2 for each in tiling.filtering)
    return whole and pool.kernel == pool.stride == POOLED and not any(pool.pad)
