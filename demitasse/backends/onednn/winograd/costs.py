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
        near: Of a byte that is moved within the cache.
        far: Of a byte of transformed filters that a product reads from memory.
        learn: Of such a byte when the filters are transformed, or their gradient is.
        start: Of the primitives of a chunk, beside their work.
        most: How many times the definition's cost is accepted.
    """

    near: float
    far: float
    learn: float
    start: float
    most: float


AVX512 = Costs(near=19.0, far=6.0, learn=6.0, start=1e7, most=1.25)
"""With caches of one's own ``near`` is 4. On a virtual machine it was seen to be 19, at times when
the definition was as fast as ever. So it gains up to half of the time on a machine of one's own and
loses little on a bad day."""

AVX2 = Costs(near=7.0, far=4.0, learn=2.0, start=3e7, most=0.9)
"""The operations take longer, the bytes do not. For most layers of GoogLeNet, ResNet-50, CaffeNet
and smaller nets this was within a fifth of what was measured."""


def pays(tiling: Tiling, costs: Costs, *, training: bool) -> bool:
    """Return whether transforms and products cost less than the definition.

    Args:
        tiling: The convolution.
        costs: Of this processor.
        training: Whether filters change between passes.
    """
    tiles, step = tiling.images * math.prod(tiling.grid), tiling.matrices.outputs
    rounds = tiling.images // tiling.chunk * tiling.bands
    data, sums = (tiling.points * tiles * n for n in (tiling.channels, tiling.filters))
    image = tiling.images * math.prod(tiling.size) * tiling.channels
    out = 1 + 2 * step / len(tiling.matrices.input) + 3 * step**2 / tiling.points
    moved = 5 * data + out * sums + 3 * image
    filters = rounds * costs.far + (5 * costs.learn if training else 0)
    mine = (
        2.0 * tiling.points * tiles * tiling.depth
        + 4 * (costs.near * moved + filters * tiling.points * tiling.depth)
        + costs.start * rounds
    )
    area = math.prod(tiling.output) * tiling.matrices.taps**2
    return mine < costs.most * 2.0 * tiling.images * area * tiling.depth
