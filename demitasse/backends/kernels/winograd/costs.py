"""Cost model of Winograd and direct convolution.

It knows only sizes, so that the same net always computes the same numbers on the same machine.
"""

from __future__ import annotations

import math

from demitasse.backends.kernels.winograd.tiling import Tiling

__all__ = ["pays"]

# Costs, in operations of a large product of matrices on vectors of 8 floats.
PRODUCT_COST = 1.1
"""An operation of the products at the points."""

TRANSFORM_COST = 37.0
"""An element of a tile at a point, transformed there or back."""

FILTER_COST, TRAINED_FILTER_COST = 15.0, 80.0
"""An element of a filter at a point: where it is only read; where filters change, which are
transformed for two of the passes and summed in the third. Of the latter the break-even point was
found at 100 on one processor and at 40 on another."""

STRIDED_FILTER_COST = 8.0
"""The same of filters of stride 2, which are taken to the points for each block of tiles."""

START_COST, TRAINING_START_COST = 3e6, 5e6
"""Overhead of a Winograd pass over direct convolution."""

DEFINITION_COST, FEW_CHANNELS_COST = 1.2, 7.0
"""An operation of the definition; and that divided by the number of channels is added."""

MEASURED_WIDTH = 8
"""Vector width of the cost model. With wider vectors, memory and threads cost more operations."""


def pays(tiling: Tiling, *, training: bool) -> bool:
    """Return whether transforms and products cost less than the definition.

    Args:
        tiling: The convolution.
        training: Whether filters change between passes.
    """
    tiles = tiling.images * math.prod(tiling.grid)
    filters = tiling.points * tiling.channels * tiling.filters / tiling.groups
    slower = tiling.width / MEASURED_WIDTH
    filter_cost = TRAINED_FILTER_COST if training else FILTER_COST
    if tiling.stride > 1:
        filter_cost = STRIDED_FILTER_COST
    tiled = (
        2 * PRODUCT_COST * tiles * filters
        + TRANSFORM_COST * tiling.points * tiles * (tiling.channels + tiling.filters)
        + slower * filter_cost * filters
        + slower * (TRAINING_START_COST if training else START_COST)
    )
    area = tiling.images * math.prod(tiling.output)
    taps = tiling.filtering.taps if tiling.stride == 1 else (tiling.window / tiling.stride) ** 2
    weights = filters / tiling.points * taps
    few = min(tiling.channels, tiling.filters) / tiling.groups
    return tiled < (DEFINITION_COST + FEW_CHANNELS_COST / few) * 2 * area * weights
