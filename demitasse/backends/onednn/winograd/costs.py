"""What a convolution over tiles costs beside the definition, by a model of both.

It knows only sizes and the processor's kind, so that the same net always computes the same numbers
on the same machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from demitasse.backends.onednn.winograd.tiling import Tiling

__all__ = ["AVX2", "AVX512", "Costs", "pays"]


@dataclass(frozen=True)
class Costs:
    """Times, in operations of a large product of matrices.

    Attributes:
        near: Of a byte that is moved within a core's own cache.
        across: Of such a byte where cores work on each other's.
        far: Of a byte of transformed filters that a product reads from memory.
        learn: Of such a byte when the filters are transformed, or their gradient is.
        start: Of the primitives of a chunk, beside their work.
        most: How many times the definition's cost is accepted.
    """

    near: float
    across: float
    far: float
    learn: float
    start: float
    most: float


AVX512 = Costs(near=6.0, across=19.0, far=6.0, learn=6.0, start=1e7, most=1.0)
"""Cores of a virtual machine that do not share a cache cost 19 for a byte of each other's, those
that do 4 to 8."""

AVX2 = Costs(near=4.5, across=7.0, far=4.0, learn=2.0, start=4e7, most=0.9)
"""The operations take longer, the bytes do not. For most layers of GoogLeNet, ResNet-50, CaffeNet
and smaller nets this is within a third of what was measured, and on the right side."""


def pays(tiling: Tiling, costs: Costs, *, alone: bool, training: bool) -> bool:
    """Return whether transforms and products cost less than the definition.

    Args:
        tiling: The convolution.
        costs: Of this processor.
        alone: Whether every thread has a lane of its own.
        training: Whether filters change between passes.
    """
    tiles, step = tiling.images * math.prod(tiling.grid), tiling.matrices.outputs
    rounds = tiling.lane // tiling.chunk * tiling.bands
    data, sums = (tiling.points * tiles * n for n in (tiling.channels, tiling.filters))
    image = tiling.images * math.prod(tiling.size) * tiling.channels
    out = 1 + 2 * step / len(tiling.matrices.input) + 3 * step**2 / tiling.points
    moved = 5 * data + out * sums + 3 * image
    near = costs.near if alone else costs.across
    filters = rounds * costs.far + (5 * costs.learn if training else 0)
    mine = (
        2.0 * tiling.points * tiles * tiling.depth
        + 4 * (near * moved + filters * tiling.points * tiling.depth)
        + costs.start * rounds
    )
    area = math.prod(tiling.output) * tiling.matrices.taps**2
    return mine < costs.most * 2.0 * tiling.images * area * tiling.depth
