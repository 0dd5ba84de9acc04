"""What a convolution over tiles costs beside the definition, by a model of both.

It knows only sizes, so that the same net always computes the same numbers on the same machine.
"""

from __future__ import annotations

import math

from demitasse.backends.kernels.winograd.tiling import Tiling

__all__ = ["pays"]

# Times, in operations of a large product of matrices on vectors of 8 floats.
PRODUCTS = 1.1
"""Of an operation of the products at the points."""

TRANSFORM = 37.0
"""Of an element of a tile at a point: on the way there, or on the way back."""

READ, LEARN = 15.0, 100.0
"""Of an element of a filter at a point: where it is only read; where filters change, which are
transformed for two of the passes and summed in the third."""

START, START_TRAINING = 3e6, 5e6
"""Of a pass, beside its work, more than the definition's."""

DEFINITION, FEW = 1.2, 7.0
"""Of an operation of the definition: some time, and more where there are few channels."""

MEASURED = 8
"""Width of the vectors. Where they are wider, memory and threads cost more operations."""


def pays(tiling: Tiling, *, training: bool) -> bool:
    """Return whether transforms and products cost less than the definition.

    Args:
        tiling: The convolution.
        training: Whether filters change between passes.
    """
    tiles = tiling.images * math.prod(tiling.grid)
    filters = tiling.points * tiling.channels * tiling.filters / tiling.groups
    slower = tiling.width / MEASURED
    mine = (
        2 * PRODUCTS * tiles * filters
        + TRANSFORM * tiling.points * tiles * (tiling.channels + tiling.filters)
        + slower * (LEARN if training else READ) * filters
        + slower * (START_TRAINING if training else START)
    )
    area = tiling.images * math.prod(tiling.output)
    weights = filters / tiling.points * tiling.matrices.taps**2
    few = min(tiling.channels, tiling.filters) / tiling.groups
    return mine < (DEFINITION + FEW / few) * 2 * area * weights
