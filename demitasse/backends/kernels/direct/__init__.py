"""Convolution of pictures: of few channels, which fill no vector.

The vectors are the filters, and every number of a window is multiplied with one of them. The
library's code for this pads the picture's channels, or the filters; and its gradient of the filters
takes twice as long as the products.
"""

from __future__ import annotations

import math

from demitasse.backends import ops
from demitasse.backends.kernels.direct.windows import Windows

__all__ = ["windows_of"]

FEWEST = 3e6
"""Operations below which the time to start a kernel is more than it saves."""

WIDEST = 16
"""Taps of a window's row at most, for the kernels write them out."""


def windows_of(
    op: ops.Conv, x: ops.Shape, y: ops.Shape, *, width: int, threads: int
) -> Windows | None:
    """Return the windows of a convolution; None where it is not one of pictures.

    Args:
        op: The convolution.
        x: Its input's shape, (N, C, H, W).
        y: Its output's shape.
        width: Floats of a kernel's vectors; 0 where none can be made.
        threads: How many work on it.
    """
    few = len(op.kernel) == 2 and op.group == 1 and x[1] < width <= y[1]
    if not few or max(op.kernel) == 1 or op.kernel[1] > WIDEST:
        return None
    if 2 * math.prod(y) * x[1] * math.prod(op.kernel) < FEWEST:
        return None
    return Windows(op, x, y, width, threads)
