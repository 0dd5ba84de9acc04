"""Winograd's convolution: input transform, products, output transform.

The same is the gradient of a convolution's input, which is a convolution of the output's gradient
with flipped filters.
"""

import math

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.epilogue import NOTHING, Rectifier, rectifying
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Arguments, Struct, Values
from demitasse.backends.kernels.language.words import FLOAT, Vector, choose, clamp_min, minimum
from demitasse.backends.kernels.products import matrix_products
from demitasse.backends.kernels.winograd import WinogradSchedule, transforms
from demitasse.backends.kernels.winograd.blocks import (
    ScratchLayout,
    StripFields,
    each_block,
    each_strip,
)
from demitasse.backends.kernels.winograd.matrices import Filtering
from demitasse.backends.kernels.winograd.products import ProductFields, each_panel, product_values
from demitasse.backends.ops import LOWEST


class ConvolutionFields(Struct):
    """A Winograd convolution."""

    strips: StripFields
    products: ProductFields
    x: transforms.ImageFields
    y: transforms.OutputFields
    """The output; height and width are those before pooling."""
    rectifier: Address
    """Numbers of the epilogue: one slope for each output channel, or the limits."""
    offsets: Address
    """One offset for each output channel."""


@ConvolutionFields.kernel("convolve")
def _kernel(k: Kernel, f: ConvolutionFields, of: Filtering, *, pooled: bool, limited: bool) -> None:
    forth = transforms.transform(k.module, "forth", (of.down.input, of.across.input), k.width)
    way_back = back(k.module, of, k.width, pool=pooled, limited=limited)
    p, y, by = f.products, f.y, POOLED if pooled else 1
    tile_bytes, tile_position_bytes = p.tile_stride * FLOAT, p.tile_position_stride * FLOAT
    with each_block(k, f.strips) as block:
        tiles = transforms.Positions(block.stack, tile_bytes, tile_position_bytes)
        sums = block.stack + p.sums_bytes
        with block.stage(0):
            transforms.cut(k, f.strips, f.x, block, forth, of.inputs, of.outputs, tiles)
        with block.stage(1), each_panel(k, p, block, of.positions) as panel:
            k.call_at(
                panel.product, panel.tiles, tile_bytes, FLOAT, panel.filters, panel.row_bytes,
                panel.sums, p.sum_stride * FLOAT, block.tiles, p.channels, 0, panel.remainders,
            )  # fmt: skip
        with (
            block.stage(2),
            each_strip(k, f.strips, block) as strip,
            transforms.each_vector(k, y) as tiled,
        ):
            down, across = of.outputs
            row = strip.image * y.image_stride + strip.row * (down // by) * y.row_stride
            target = y.at + row * FLOAT + tiled.pixel_bytes
            with k.loop(f.strips.tile_columns) as number:
                tile = (strip.tile + number.i) * p.sum_stride * FLOAT
                k.call(
                    way_back,
                    sums + tiled.channel_bytes + tile,
                    p.sum_position_stride * FLOAT,
                    target + number.i * (across // by) * y.column_stride * FLOAT,
                    y.row_stride * FLOAT,
                    y.column_stride * FLOAT,
                    minimum(down, tiled.height - strip.row * down),
                    minimum(across, tiled.width - number.i * across),
                    f.offsets + tiled.channel_bytes,
                    f.rectifier if limited else f.rectifier + tiled.channel_bytes,
                )


STAGES = 3
"""Stages of a block: input transform, products, output transform."""

POOLED = 2
"""Rows and columns of the windows that are pooled; tiles have whole ones of them."""


class WinogradConvolution:
    """A convolution of float32 images, with an offset and perhaps an epilogue.

    MAX pooling of 2 x 2 outputs with a stride of 2 may follow.

    Attributes:
        scratch_size: Elements of scratch memory for a call.
    """

    def __init__(
        self, tiling: WinogradSchedule, x: Images, y: Images, then: Rectifier = NOTHING, *,
        pool: bool = False,
    ) -> None:  # fmt: skip
        self.tiling, width = tiling, tiling.width
        self._scratch = ScratchLayout(tiling)
        self.scratch_size = self._scratch.size
        self._offsets = aligned(tiling.sum_stride)
        self._rectifier = then.numbers(tiling.sum_stride)
        self._kernel = _kernel(width, tiling.filtering, pooled=pool, limited=then.limited)
        fields: dict[str, Values | np.ndarray] = {
            "products": product_values(
                tiling,
                matrix_products(width, packed=True),
                tiling.block_tiles,
                self._scratch.sums_bytes,
            ),
            "x": transforms.image_values(x, tiling.size, width, tiling.pad),
            "y": transforms.image_values(
                y, self._written(y, pool=pool), width, of=transforms.OutputFields
            ),
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
        self, source: np.ndarray, target: np.ndarray, filters: np.ndarray, scratch: np.ndarray
    ) -> None:
        """Convolve ``source`` with transformed filters.

        ``scratch`` has :attr:`scratch_size` elements or more.
        """
        each: dict[str, np.ndarray] = {
            **self._scratch.divide(scratch),
            "products.filters": filters,
            "x.at": source,
            "y.at": target,
        }
        for call in self._calls:
            call.run(self._kernel, self.tiling.threads, each)


def back(module: object, of: Filtering, width: int, *, pool: bool, limited: bool = False) -> Kernel:
    """Return the kernel that transforms one tile's sums to outputs.

    The kernel's arguments are the address of the first position and the bytes to the next; the
    address of the first output and the bytes to the next row and column; the rows and columns of
    outputs; the addresses of the offsets and of the numbers of the epilogue. MAX pooling of 2 x 2
    existing outputs gives the lowest float32 for NaN alone, as for minus infinity.
    """
    k = Kernel(module, "back", 9, width)
    positions, position_bytes, target, row_bytes, column_bytes, rows, columns = k.arguments[:7]
    offsets, rectifier = k.arguments[7:]
    down, across = of
    side, step = across.side, POOLED if pool else 1
    offset, then = k.load(offsets), rectifying(k, rectifier, 0, limited=limited)
    none, lowest = k.constant(-math.inf), k.constant(LOWEST)

    def write(row: int, found: list[list[Vector]]) -> None:
        """Write a row of outputs, or the pooled row of two rows."""
        values = transforms.times_vectors(k, across.output, found[0])
        if pool:
            # a row or column that is not there is replaced by the one beside it
            following = zip(found[0], found[1], strict=True)
            under = [choose(rows > row + 1, other, one) for one, other in following]
            under = transforms.times_vectors(k, across.output, under)
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

    product = transforms.rows_of_product(
        k, down.output, side, positions, position_bytes * side, position_bytes
    )
    for some in transforms.some_rows(down.outputs, side, width, step):
        with k.when(rows > some.start):
            found = product(some)
            for row in some[::step]:
                with k.when(rows > row):
                    write(row, found[row - some.start :][:step])
    k.done()
    return k
