"""Products at the positions, panel by panel, against numpy."""

import numpy as np
import pytest
from stages import WIDTH, exported, normal
from tilings import tiling

from demitasse.backends.kernels.language.structs import Arguments, Struct
from demitasse.backends.kernels.language.values import FLOAT
from demitasse.backends.kernels.products import matrix_products
from demitasse.backends.kernels.winograd.blocks import ScratchLayout, StripFields, each_block
from demitasse.backends.kernels.winograd.products import ProductFields, each_panel, product_values


class MultiplyFields(Struct):
    """One block of tiles at the positions."""

    strips: StripFields
    """The strips."""
    products: ProductFields
    """The products."""


def write(k, positions):
    f = MultiplyFields.read(k)
    p = f.products
    with each_block(k, f.strips) as block, each_panel(k, p, block, positions) as panel:
        k.call_at(
            panel.product, panel.tiles, p.tile_stride * FLOAT, FLOAT, panel.filters,
            panel.row_bytes, panel.sums, p.sum_stride * FLOAT, block.tiles, p.channels, 0,
            panel.remainders,
        )  # fmt: skip


def by_position(memory, of, stride, row_stride, count):
    """The rows of each position. Shape: (positions, tiles, count)."""
    rows = memory[: of.positions * stride].reshape(of.positions, stride)
    tiles = of.strips_per_block * of.grid[1]
    return rows[:, : tiles * row_stride].reshape(of.positions, tiles, row_stride)[..., :count]


@WIDTH
@pytest.mark.parametrize(("c", "m", "group"), [(16, 16, 1), (20, 50, 1), (32, 48, 2)])
@pytest.mark.parametrize("shared", [False, True])
def test_tiles_times_filters_are_sums(c, m, group, shared, width):
    tuning = {"shared_filter_bytes": 0} if shared else {}
    of = tiling((1, c, 12, 12), m, (3, 3), width, group=group, **tuning)
    scratch, filters = ScratchLayout(of), normal(of.filter_size)
    products = matrix_products(width, packed=True)
    fields = MultiplyFields.values(
        strips=scratch.calls(stages=1)[0],
        products=product_values(of, products, of.block_tiles, scratch.sums_bytes),
    )
    memory = normal(scratch.size, seed=1)
    kernel = exported(f"multiply{width}", width, lambda k: write(k, of.positions))

    places = scratch.divide(memory)
    Arguments(fields).run(kernel, 1, {**places, "products.filters": filters})

    stack = places["strips.stacks"]
    tiles = by_position(stack, of, of.tile_position_stride, of.tile_stride, c)
    sums = by_position(
        stack[scratch.sums_bytes // FLOAT :], of, of.sum_position_stride, of.sum_stride, m
    )
    inputs, outputs = c // group, m // group
    for g in range(group):
        taken = tiles[..., g * inputs : (g + 1) * inputs].astype(float)
        own = filters.reshape(of.positions, -1)[:, g * of.filter_group_stride :]
        for vectors, first in of.panels:
            columns = vectors * width
            part = own[:, first * inputs : (first + columns) * inputs]
            part = part.reshape(of.positions, inputs, columns)[..., : outputs - first]
            start = g * outputs + first
            got = sums[..., start : start + part.shape[-1]]
            np.testing.assert_allclose(got, taken @ part, rtol=1e-4, atol=1e-4)
