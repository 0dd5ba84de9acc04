"""Direct convolution of few channels, which fill no vector: photographs and digits.

The vectors are the filters, and every number of a window is multiplied with one of them. oneDNN's
code for this pads the image's channels, or the filters; and its gradient of the filters takes twice
as long as the products.
"""

from __future__ import annotations

import math

from demitasse.backends import ops
from demitasse.backends.kernels.few_inputs.schedule import DirectSchedule
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.step import Declined

__all__ = ["plan_direct"]

FEWEST = 3e6
"""Operations below which starting a kernel takes longer than it saves."""

WIDEST = 16
"""Greatest number of taps of a window's row; kernels are unrolled over taps."""


def plan_direct(op: ops.Conv, x: ops.Shape, y: ops.Shape, tuning: Tuning) -> DirectSchedule:
    """Return the schedule of a convolution with few input channels.

    Args:
        op: The convolution.
        x: Its input's shape, (N, C, H, W).
        y: Its output's shape.
        tuning: Target of the kernels, and the choice of kernels.

    Raises:
        Declined: Channels or windows are unsupported, or the convolution is too small to gain.
    """
    if not tuning.width or tuning.direct == "never":
        message = "direct convolution is off"
        raise Declined(message)
    few = len(op.kernel) == 2 and op.group == 1 and x[1] < tuning.width <= y[1]
    if not few or max(op.kernel) == 1 or op.kernel[1] > WIDEST:
        message = (
            f"direct convolution takes images of fewer than {tuning.width} channels to as many "
            f"or more, in one group, windows up to {WIDEST} wide"
        )
        raise Declined(message)
    work = 2 * math.prod(y) * x[1] * math.prod(op.kernel)
    if tuning.direct == "auto" and work < FEWEST:
        message = f"{work:.1e} operations; direct convolution pays from {FEWEST:.0e} on"
        raise Declined(message)
    return DirectSchedule(op, x, y, tuning)
