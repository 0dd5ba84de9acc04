"""Winograd's convolution: a quarter of the multiplications of the definition, and less.

Images are cut into tiles that overlap. A tile's values at 36 or 64 points are multiplied with those
of the filters, and the products are summed over the channels, which is a product of matrices at
each point. Kernels made at run time do all of it for a few tiles at a time, whose values stay in a
core's own cache. Rounding errors are three to five times those of the definition.
"""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.kernels.winograd.costs import pays
from demitasse.backends.kernels.winograd.matrices import FINITE, matrices
from demitasse.backends.kernels.winograd.tiling import Tiling

__all__ = ["pools_tiles", "tiling_of"]

POOLED = (2, 2)
"""Windows that can be pooled along: four outputs, side by side, of which a tile has 4 x 4."""


def tiling_of(
    op: ops.Conv, x: ops.Shape, y: ops.Shape, tuning: Tuning, *, training: bool
) -> Tiling | None:
    """Return how a convolution is tiled, or None where the definition costs less.

    Args:
        op: The convolution.
        x: Its input's shape, (N, C, H, W).
        y: Its output's shape.
        tuning: For what kernels are made, and whether tiles are taken.
        training: Whether filters change between passes.
    """
    if len(op.kernel) != 2 or not tuning.width or tuning.winograd == "never":
        return None
    taps = op.kernel[0]
    plain = {*op.stride, *op.dilation} == {1} and op.kernel[1] == taps in FINITE
    if not plain or max(op.pad) >= taps or min(x[1], y[1]) < tuning.width:
        return None
    tiling = Tiling(
        matrices=matrices(taps),
        images=x[0],
        channels=x[1],
        size=(x[2], x[3]),
        filters=y[1],
        groups=op.group,
        pad=(op.pad[0], op.pad[1]),
        output=(y[2], y[3]),
        tuning=tuning,
    )
    taken = tuning.winograd == "always" or pays(tiling, training=training)
    return tiling if taken else None


def pools_tiles(pool: ops.Pool) -> bool:
    """Return whether MAX pooling can follow in the same kernel."""
    return pool.kernel == pool.stride == POOLED and not any(pool.pad)
