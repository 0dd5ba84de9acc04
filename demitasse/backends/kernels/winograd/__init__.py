"""Winograd's convolution: half to a sixth of the multiplications of the definition.

Images are cut into tiles that overlap. A tile's values at some points are multiplied with those
of the filters, and the products are summed over the channels, which is a product of matrices at
each point. Kernels made at run time do all of it for a few tiles at a time, whose values stay in a
core's own cache. Rounding errors are one to five times those of the definition.
"""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.kernels.winograd.costs import pays
from demitasse.backends.kernels.winograd.matrices import TAPS, filtering
from demitasse.backends.kernels.winograd.tiling import Tiling
from demitasse.backends.step import Declined

__all__ = ["pools_tiles", "tiling_of"]

POOLED = (2, 2)
"""Windows that can be pooled along, where a tile has whole ones of them."""


def tiling_of(
    op: ops.Conv, x: ops.Shape, y: ops.Shape, tuning: Tuning, *, training: bool
) -> Tiling:
    """Return how a convolution is tiled.

    Args:
        op: The convolution.
        x: Its input's shape, (N, C, H, W).
        y: Its output's shape.
        tuning: For what kernels are made, and whether tiles are taken.
        training: Whether filters change between passes.

    Raises:
        Declined: It cannot be, or the definition costs less.
    """
    if not tuning.width or tuning.winograd == "never":
        message = "winograd is off"
        raise Declined(message)
    plane = len(op.kernel) == 2
    plain = plane and {*op.stride, *op.dilation} == {1} and TAPS.issuperset(op.kernel)
    if not plain or any(pad >= taps for pad, taps in zip(op.pad, op.kernel, strict=True)):
        message = "winograd takes filters of 1, 3, 5 and 7 rows and columns, stride and dilation 1"
        raise Declined(message)
    if min(x[1], y[1]) < tuning.width:
        message = f"{x[1]} and {y[1]} channels; winograd takes {tuning.width} or more"
        raise Declined(message)
    tiling = Tiling(
        filtering=filtering((op.kernel[0], op.kernel[1])),
        images=x[0],
        channels=x[1],
        size=(x[2], x[3]),
        filters=y[1],
        groups=op.group,
        pad=(op.pad[0], op.pad[1]),
        output=(y[2], y[3]),
        tuning=tuning,
    )
    if tuning.winograd == "auto" and not pays(tiling, training=training):
        message = "winograd would cost more than the definition in this shape"
        raise Declined(message)
    return tiling


def pools_tiles(tiling: Tiling, pool: ops.Pool) -> bool:
    """Return whether MAX pooling can follow a convolution in the same kernel."""
    whole = not any(each.outputs % 2 for each in tiling.filtering)
    return whole and pool.kernel == pool.stride == POOLED and not any(pool.pad)
