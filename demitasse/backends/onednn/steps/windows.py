"""Windows of convolutions as the library takes them."""

from __future__ import annotations

import math
from typing import Any

from demitasse.backends import ops
from demitasse.backends.onednn.library.layout import dims
from demitasse.backends.onednn.step import decline_in_place
from demitasse.backends.step import Declined, Operands

__all__ = ["decline_windows", "image_shape", "window_of"]

MOST_AXES = 3


def decline_windows(op: ops.Conv, at: Operands) -> None:
    """Leave to others what the library has no convolution for.

    Raises:
        Declined: There are too many spatial axes, several bottoms, or it is in place.
    """
    decline_in_place(at)
    axes = len(op.kernel)
    if not 1 <= axes <= MOST_AXES:
        message = f"{axes} spatial axes; oneDNN takes 1 to {MOST_AXES}"
        raise Declined(message)
    if len(at.bottom) != 1:
        message = f"{len(at.bottom)} bottoms; oneDNN's Step takes one"
        raise Declined(message)


def window_of(op: ops.Conv) -> list[Any]:
    """Return strides, dilations and pads, before and behind, as a primitive takes them."""
    pad = dims(op.pad)
    return [dims(op.stride), dims(tuple(d - 1 for d in op.dilation)), pad, pad]


def image_shape(shape: ops.Shape, axis: int) -> ops.Shape:
    """Return (N, C, *spatial) of a blob whose channels are on ``axis``."""
    return (math.prod(shape[:axis]), *shape[axis:])
