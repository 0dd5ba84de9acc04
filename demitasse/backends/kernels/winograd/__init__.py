"""Convolution by minimal filtering: a quarter of the multiplications of the definition.

Images are cut into tiles that overlap. A tile's values at 36 or 64 points are multiplied with those
of the filters, and the products are summed over the channels, which is a product of matrices at
each point. Kernels made at run time do all of it for a few tiles at a time, whose values stay in a
core's own cache. Rounding errors are three to five times those of the definition.
"""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.backends.kernels.winograd.costs import pays
from demitasse.backends.kernels.winograd.matrices import FINITE, matrices
from demitasse.backends.kernels.winograd.tiling import Tiling
from demitasse.config import settings

__all__ = ["tiling_of"]


def tiling_of(
    op: ops.Conv, x: ops.Shape, y: ops.Shape, *, width: int, threads: int, training: bool
) -> Tiling | None:
    """Return how a convolution is tiled, or None where the definition costs less.

    Args:
        op: The convolution.
        x: Its input's shape, (N, C, H, W).
        y: Its output's shape.
        width: Floats of a kernel's vectors; 0 where none can be made.
        threads: How many work on it.
        training: Whether filters change between passes.
    """
    if len(op.kernel) != 2 or not width or not settings.get("winograd"):
        return None
    taps = op.kernel[0]
    plain = {*op.stride, *op.dilation} == {1} and op.kernel[1] == taps in FINITE
    if not plain or max(op.pad) >= taps or min(x[1], y[1]) < width:
        return None
    tiling = Tiling(
        matrices(taps), x[0], x[1], (x[2], x[3]), y[1], op.group, (op.pad[0], op.pad[1]),
        (y[2], y[3]), width, threads,
    )  # fmt: skip
    return tiling if pays(tiling, training=training) else None
