"""Winograd's convolution: input transform, products, output transform.

The same is the gradient of a convolution's input, which is a convolution of the output's gradient
with flipped filters.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.epilogue import NOTHING, Rectifier, rectifying
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import compiled
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Arguments, Struct, Values
from demitasse.backends.kernels.language.words import (
    FLOAT,
    Vector,
    Word,
    choose,
    clamp_min,
    minimum,
)
from demitasse.backends.kernels.products import matrix_products
from demitasse.backends.kernels.winograd import WinogradSchedule
from demitasse.backends.kernels.winograd.blocks import (
    Block,
    ScratchLayout,
    StripFields,
    each_block,
    each_strip,
)
from demitasse.backends.kernels.winograd.matrices import Filtering
from demitasse.backends.kernels.winograd.products import (
    ProductFields,
    each_panel,
    product_values,
)
from demitasse.backends.kernels.winograd.transforms import (
    ImageFields,
    OutputFields,
    Piece,
    Positions,
    cut,
    each_vector,
    image_values,
    rows_of_product,
    some_rows,
    times_vectors,
    transform,
)
from demitasse.backends.ops import LOWEST


class ConvolutionFields(Struct):
    """Arguments of a Winograd convolution."""

    strips: StripFields
    """The strips."""
    products: ProductFields
    """The products."""
    x: ImageFields
    """The input."""
    y: OutputFields
    """The output; height and width are those before pooling."""
    rectifier: Address
    """Address of the rectifier's numbers: one slope for each output channel, or the limits."""
    offsets: Address
    """Address of one offset for each output channel."""


@cache
def _kernel(of: Filtering, width: int, *, pool: bool, limited: bool) -> int:
    """Return the address of the kernel, with pooling or not, and with limits or slopes."""
    name = f"convolve{of.name}x{width}{'pooled' if pool else ''}{'_limited' if limited else ''}"

    def write(module: Any) -> None:
        _write(module, name, of, width, pool=pool, limited=limited)

    return compiled(name, write, name)[name]


def _write(module: Any, name: str, of: Filtering, width: int, *, pool: bool, limited: bool) -> None:
    forth = transform(module, "forth", (of.down.input, of.across.input), width)
    way_back = back(module, of, width, pool=pool, limited=limited)
    k = Kernel(module, name, 1, width, exported=True)
    f = ConvolutionFields.read(k)
    p = f.products
    tile_bytes, tile_position_bytes = p.tile_stride * FLOAT, p.tile_position_stride * FLOAT
    with each_block(k, f.strips) as block:
        tiles, sums = (
            Positions(block.stack, tile_bytes, tile_position_bytes),
            block.stack + p.sums_bytes,
        )
        with block.stage(0):
            cut(k, f.strips, f.x, block, forth, Piece.of_input(of), tiles)
        with block.stage(1):
            _multiply(k, p, block, of.positions)
        with block.stage(2):
            join(
                k, f.strips, p, f.y, block, way_back, of, sums, f.offsets, f.rectifier,
                pool=pool, limited=limited,
            )  # fmt: skip
    k.done()


def _multiply(k: Kernel, f: ProductFields, block: Block, positions: int) -> None:
    """Write the products of a block's transformed tiles and filters."""
    with each_panel(k, f, block, positions) as panel:
        k.call_at(
            panel.product, panel.tiles, f.tile_stride * FLOAT, FLOAT, panel.filters,
            panel.row_bytes, panel.sums, f.sum_stride * FLOAT, block.tiles, f.channels, 0,
            panel.remainders,
        )  # fmt: skip


STAGES = 3
"""Stages of a block: input transform, products, output transform."""


class WinogradConvolution:
    """A convolution of float32 images, with an offset and perhaps a rectifier and pooling.

    Args:
        tiling: The convolution.
        x: Its input.
        y: The output, pooled if there is pooling.
        then: Epilogue of the sums.
        pool: Whether MAX pooling of 2 x 2 outputs, side by side, follows.

    Attributes:
        scratch_size: Elements of scratch memory for a call.

    Raises:
        ValueError: A vector's channels are not contiguous.
    """

    def __init__(
        self,
        tiling: WinogradSchedule,
        x: Images,
        y: Images,
        then: Rectifier = NOTHING,
        *,
        pool: bool = False,
    ) -> None:
        self.tiling, width = tiling, tiling.width
        self._kernel = _kernel(tiling.filtering, width, pool=pool, limited=then.limited)
        self._scratch = ScratchLayout(tiling)
        self.scratch_size = self._scratch.size
        self._offsets = aligned(tiling.sum_stride)
        self._rectifier = then.numbers(tiling.sum_stride)
        fields: dict[str, Values | np.ndarray] = {
            "products": product_values(
                tiling,
                matrix_products(width, packed=True),
                tiling.block_tiles,
                self._scratch.sums_bytes,
            ),
            "x": image_values(x, tiling.size, width, tiling.pad),
            "y": image_values(y, self._written(y, pool=pool), width, of=OutputFields),
            "rectifier": self._rectifier,
            "offsets": self._offsets,
        }
        self._calls = [
            Arguments(ConvolutionFields.values(strips=strips, **fields))
            for strips in self._scratch.calls(STAGES)
        ]

    def _written(self, y: Images, *, pool: bool) -> tuple[int, int]:
        """Return the rows and columns of sums that reach the output.

        Pooling that rounds down leaves out the last row or column of an odd number.
        """
        rows, columns = self.tiling.output
        if not pool:
            return rows, columns
        _, _, pooled_rows, pooled_columns = y.shape
        return min(rows, POOLED * pooled_rows), min(columns, POOLED * pooled_columns)

    def take_offsets(self, offsets: np.ndarray) -> None:
        """Copy new offsets, one for each output channel; the initial offsets are zeros."""
        self._offsets[: offsets.shape[0]] = offsets

    def take_slopes(self, slopes: np.ndarray) -> None:
        """Copy new slopes of negative sums: one for each output channel, or one for all."""
        self._rectifier[: self.tiling.filters] = slopes

    def __call__(
        self,
        source: np.ndarray,
        target: np.ndarray,
        filters: np.ndarray,
        scratch: np.ndarray,
    ) -> None:
        """Convolve.

        Args:
            source: The input, in the memory that ``x`` describes.
            target: The output, in that of ``y``.
            filters: Transformed filters from :class:`Filters`.
            scratch: At least :attr:`scratch_size` elements.
        """
        each: dict[str, np.ndarray] = {
            **self._scratch.divide(scratch),
            "products.filters": filters,
            "x.at": source,
            "y.at": target,
        }
        for call in self._calls:
            call.run(self._kernel, self.tiling.threads, each)


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
