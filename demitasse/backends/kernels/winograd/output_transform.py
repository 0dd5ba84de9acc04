"""The output transform, with bias, ReLU and pooling."""

from __future__ import annotations

import math

from demitasse.backends.kernels.epilogue import rectifying
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.words import (
    FLOAT,
    Vector,
    Word,
    choose,
    clamp_min,
    minimum,
)
from demitasse.backends.kernels.winograd.blocks import Block, StripFields, each_strip
from demitasse.backends.kernels.winograd.matrices import Filtering
from demitasse.backends.kernels.winograd.products import ProductFields
from demitasse.backends.kernels.winograd.transforms import (
    ImageFields,
    each_vector,
    rows_of_product,
    some_rows,
    times_vectors,
)
from demitasse.backends.ops import LOWEST

POOLED = 2
"""Rows and columns of the windows that are pooled; tiles have whole ones of them."""


def back(module: object, of: Filtering, width: int, *, pool: bool, limited: bool = False) -> Kernel:
    """Return the kernel that transforms one tile's sums to outputs.

    The kernel's arguments are the address of the first position and the bytes to the next; the
    address of the first output and the bytes to the next row and column; the rows and columns of
    outputs. The last are the addresses of the offsets and of the rectifier's numbers.

    Args:
        module: The kernel's module.
        of: The matrices of the filter.
        width: Filters of a vector.
        pool: Whether 2 x 2 MAX pooling follows, over those outputs that there are; of NaN alone it
            gives the lowest float32, as of minus infinity.
        limited: True if outputs are clamped.
    """
    k = Kernel(module, "back", 9, width)
    positions, position_bytes, target, row_bytes, column_bytes, rows, columns = k.arguments[:7]
    offsets, rectifier = k.arguments[7:]
    down, across = of
    side, step = across.side, POOLED if pool else 1
    offset, then = k.load(offsets), rectifying(k, rectifier, 0, limited=limited)
    none, lowest = k.constant(-math.inf), k.constant(LOWEST)

    def write(row: int, found: list[list[Vector]]) -> None:
        """Write a row of outputs, or what two rows are pooled to."""
        values = times_vectors(k, across.output, found[0])
        if pool:
            # a row or column that is not there is replaced by the one beside it
            following = zip(found[0], found[1], strict=True)
            under = [choose(rows > row + 1, other, one) for one, other in following]
            under = times_vectors(k, across.output, under)
            # NaN is never the largest, as in Caffe, nor is what a rectifier makes NaN of
            values = [
                clamp_min(clamp_min(none, value), other)
                for value, other in zip(values, under, strict=True)
            ]
        first = target + row_bytes * (row // step)
        for place in range(0, across.outputs, step):
            with k.when(columns > place):
                value = values[place]
                if pool:
                    value = clamp_min(value, choose(columns > place + 1, values[place + 1], value))
                output = value + offset
                result = then(output)
                if pool:
                    result = choose(output > none, result, lowest)
                k.store(result, first + column_bytes * (place // step))

    product = rows_of_product(
        k, down.output, side, positions, position_bytes * side, position_bytes
    )
    for some in some_rows(down.outputs, side, width, step):
        with k.when(rows > some.start):
            found = product(some)
            for row in some[::step]:
                with k.when(rows > row):
                    write(row, found[row - some.start :][:step])
    k.done()
    return k


def join(
    k: Kernel,
    f: StripFields,
    products: ProductFields,
    images: ImageFields,
    block: Block,
    way: Kernel,
    of: Filtering,
    sums: Word,
    offsets: Word,
    rectifier: Word,
    *,
    pool: bool,
    limited: bool,
) -> None:
    """Write the output transform of all tiles of a block's strips.

    Args:
        k: The kernel.
        f: Its fields of strips.
        products: Its fields of products, whose sums are taken back.
        images: Its fields of the output; heights and widths are those before pooling.
        block: The block.
        way: The kernel that :func:`back` returns.
        of: The matrices of the filter.
        sums: Address of the block's first tile at the first position.
        offsets: Address of one for each output channel.
        rectifier: Address of its numbers: a slope for each output channel, or the limits.
        pool: Whether pooling follows.
        limited: Whether there are limits.
    """
    down, across = (each.outputs for each in of)
    by = POOLED if pool else 1
    with each_strip(k, f, block) as strip, each_vector(k, images) as tiled:
        row = strip.image * images.image_stride + strip.row * (down // by) * images.row_stride
        target = images.at + row * FLOAT + tiled.pixel_bytes
        with k.loop(f.tile_columns) as number:
            tile_bytes = (strip.tile + number.i) * products.sum_stride * FLOAT
            k.call(
                way,
                sums + tiled.channel_bytes + tile_bytes,
                products.sum_position_stride * FLOAT,
                target + number.i * (across // by) * images.column_stride * FLOAT,
                images.row_stride * FLOAT,
                images.column_stride * FLOAT,
                minimum(down, tiled.height - strip.row * down),
                minimum(across, tiled.width - number.i * across),
                offsets + tiled.channel_bytes,
                rectifier if limited else rectifier + tiled.channel_bytes,
            )
