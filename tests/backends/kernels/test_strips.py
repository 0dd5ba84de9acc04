"""Blocks of strips, as kernels divide them among threads and chunks."""

import numpy as np
import pytest
from stages import exported
from tilings import tiling

from demitasse.backends.kernels.language.structs import Address, Struct
from demitasse.backends.kernels.language.values import INT
from demitasse.backends.kernels.winograd.blocks import BlockedKernel, BlockFields, each_block


class NotedFields(Struct):
    """Blocks of strips, and memory for their sizes."""

    blocks: BlockFields
    """The blocks."""
    noted: Address
    """Address of the tiles of the block that begins with each strip."""


def write(k):
    f = NotedFields.read(k)
    with each_block(k, f.blocks) as block, k.when(block.strips > 0):
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
    noted = np.zeros(of.strips, np.int64)
    kernel = BlockedKernel(of, exported("noted blocks", 8, write), NotedFields, 1, noted=noted)

    kernel.run(np.empty(kernel.scratch_size, np.float32), {})

    assert {*of.block_tiles} == set(noted.tolist()) - {0}
    assert noted.sum() == of.strips * of.grid[1]
