"""How strips are divided into blocks, as the kernel finds them."""

import numpy as np
import pytest
from stages import exported
from tilings import tiling

from demitasse.backends.kernels.language.structs import Address, Arguments, Struct
from demitasse.backends.kernels.language.values import INT
from demitasse.backends.kernels.winograd.blocks import ScratchLayout, StripFields, each_block


class NotedFields(Struct):
    """Blocks of strips, and where it is noted what they are."""

    strips: StripFields
    """The strips."""
    noted: Address
    """Address of the tiles of the block that begins with each strip."""


def write(k):
    f = NotedFields.read(k)
    with each_block(k, f.strips) as block:
        k.store_word(block.tiles, f.noted + block.first * INT)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size", [3, 8, 14, 28, 56, 57])
@pytest.mark.parametrize("images", [1, 3, 8])
@pytest.mark.parametrize("shared", [False, True])
def test_blocks_have_the_tiles_that_products_are_prepared_for(images, size, threads, shared):
    tuning = {"stack_bytes": 1 << 17, "shared_stack_bytes": 1 << 17}
    if shared:
        tuning["shared_filter_bytes"] = 0
    of = tiling((images, 8, size, size), 8, (3, 3), 8, threads=threads, **tuning)
    scratch, noted = ScratchLayout(of), np.zeros(of.strips, np.int64)

    places = scratch.divide(np.empty(scratch.size, np.float32))
    for strips in scratch.calls(stages=1):
        fields = NotedFields.values(strips=strips, noted=noted)
        Arguments(fields).run(exported("noted blocks", 8, write), 1, places)

    assert of.block_tiles == set(noted.tolist()) - {0}
    assert noted.sum() == of.strips * of.grid[1]
