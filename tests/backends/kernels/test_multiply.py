"""Products at the positions, panel by panel, against numpy."""

import numpy as np
import pytest
from stages import WIDTH, exported, normal
from tilings import tiling

from demitasse.backends.kernels.language.structs import Struct
from demitasse.backends.kernels.winograd.blocks import BlockedKernel, BlockFields, each_block
from demitasse.backends.kernels.winograd.convolution import (
    ProductFields,
    multiply_tiles,
    product_values,
)


class MultiplyFields(Struct):
    """One block of tiles at the positions."""

    blocks: BlockFields
    """The blocks."""
    products: ProductFields
    """The products."""


def write(k, positions):
    f = MultiplyFields.read(k)
    with each_block(k, f.blocks) as block:
        multiply_tiles(k, f.products, block, positions)


def by_position(memory, of, stride, row_stride, count):
    """The rows of each position. Shape: (positions, tiles, count)."""
    rows = memory[: of.positions * stride].reshape(of.positions, stride)
    tiles = of.block_strips * of.grid[1]
    return rows[:, : tiles * row_stride].reshape(of.positions, tiles, row_stride)[..., :count]


@WIDTH
@pytest.mark.parametrize(("c", "m", "group"), [(16, 16, 1), (20, 50, 1), (32, 48, 2)])
@pytest.mark.parametrize("shared", [False, True])
def test_tiles_times_filters_are_sums(c, m, group, shared, width):
    tuning = {"shared_filter_bytes": 0} if shared else {}
    of = tiling((1, c, 12, 12), m, (3, 3), width, group=group, **tuning)
    filters, code = (
        normal(of.filter_size),
        exported(f"multiply{width}", width, lambda k: write(k, of.positions)),
    )
    kernel = BlockedKernel(of, code, MultiplyFields, 1, products=product_values(of))
    memory = normal(kernel.scratch_size, seed=1)

    kernel.run(memory, {"products.filters": filters})

    stack = memory[kernel.stacks_start :]
    tiles = by_position(stack, of, of.tile_position_stride, of.tile_stride, c)
    behind = stack[of.positions * of.tile_position_stride :]
    sums = by_position(behind, of, of.sum_position_stride, of.sum_stride, m)
    inputs, outputs = c // group, m // group
    own = filters.reshape(of.positions, -1)
    for number, first, vectors, start in of.panels:
        taken = tiles[..., number * inputs : (number + 1) * inputs].astype(float)
        columns = vectors * width
        part = own[:, start : start + columns * inputs].reshape(of.positions, inputs, columns)
        part = part[..., : outputs - first]
        begin = number * outputs + first
        got = sums[..., begin : begin + part.shape[-1]]
        np.testing.assert_allclose(got, taken @ part, rtol=1e-4, atol=1e-4)
