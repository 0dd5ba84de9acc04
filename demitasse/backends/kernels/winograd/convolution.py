"""Winograd's convolution: input transform, products, output transform.

The same is the gradient of a convolution's input, which is a convolution of the output's gradient
with flipped filters.
"""

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.epilogue import NOTHING, Rectifier, rectifying
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Arguments, Struct, Values
from demitasse.backends.kernels.language.values import FLOAT, Vector, choose, minimum
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


class ConvolutionFields(Struct):
    """A Winograd convolution."""

    strips: StripFields
    products: ProductFields
    x: transforms.ImageFields
    y: transforms.OutputFields
    rectifier: Address
    """Numbers of the epilogue: one slope for each output channel, or the limits."""
    offsets: Address
    """One offset for each output channel."""


@ConvolutionFields.kernel("convolve")
def _kernel(k: Kernel, f: ConvolutionFields, of: Filtering, *, limited: bool) -> None:
    forth = transforms.transform(k.module, "forth", (of.down.input, of.across.input), k.width)
    way_back = back(k.module, of, k.width, limited=limited)
    p, y = f.products, f.y
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
            row = strip.image * y.image_stride + strip.row * down * y.row_stride
            target = y.at + row * FLOAT + tiled.pixel_bytes
            with k.loop(f.strips.tile_columns) as number:
                tile = (strip.tile + number.i) * p.sum_stride * FLOAT
                k.call(
                    way_back,
                    sums + tiled.channel_bytes + tile,
                    p.sum_position_stride * FLOAT,
                    target + number.i * across * y.column_stride * FLOAT,
                    y.row_stride * FLOAT,
                    y.column_stride * FLOAT,
                    minimum(down, tiled.height - strip.row * down),
                    minimum(across, tiled.width - number.i * across),
                    f.offsets + tiled.channel_bytes,
                    f.rectifier if limited else f.rectifier + tiled.channel_bytes,
                )


STAGES = 3
"""Stages of a block: input transform, products, output transform."""


class WinogradConvolution:
    """A convolution of float32 images, with an offset and perhaps an epilogue.

    Attributes:
        scratch_size: Elements of scratch memory for a call.
    """

    def __init__(
        self, tiling: WinogradSchedule, x: Images, y: Images, then: Rectifier = NOTHING
    ) -> None:
        self.tiling, width = tiling, tiling.width
        self._scratch = ScratchLayout(tiling)
        self.scratch_size = self._scratch.size
        self._offsets = aligned(tiling.sum_stride)
        self._rectifier = then.numbers(tiling.sum_stride)
        self._kernel = _kernel(width, tiling.filtering, limited=then.limited)
        fields: dict[str, Values | np.ndarray] = {
            "products": product_values(
                tiling,
                matrix_products(width, packed=True),
                tiling.block_tiles,
                self._scratch.sums_bytes,
            ),
            "x": transforms.image_values(x, tiling.size, width, tiling.pad),
            "y": transforms.image_values(y, tiling.output, width, of=transforms.OutputFields),
            "rectifier": self._rectifier,
            "offsets": self._offsets,
        }
        self._calls = [
            Arguments(ConvolutionFields.values(strips=strips, **fields))
            for strips in self._scratch.calls(STAGES)
        ]

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


def back(module: object, of: Filtering, width: int, *, limited: bool = False) -> Kernel:
    """Return the kernel that transforms one tile's sums to outputs.

    The kernel's arguments are the address of the first position and the bytes to the next; the
    address of the first output and the bytes to the next row and column; the rows and columns of
    outputs; the addresses of the offsets and of the numbers of the epilogue.
    """
    k = Kernel(module, "back", 9, width)
    positions, position_bytes, target, row_bytes, column_bytes, rows, columns = k.arguments[:7]
    offsets, rectifier = k.arguments[7:]
    down, across = of
    side = across.side
    offset, then = k.load(offsets), rectifying(k, rectifier, 0, limited=limited)
    high, wide = of.outputs
    vector = k.vector_bytes
    scratch = k.scratch(high * wide)
    whole = (rows >= high) & (columns >= wide)
    out = choose(whole, target, scratch)
    out_row = choose(whole, row_bytes, wide * vector)
    out_column = choose(whole, column_bytes, vector)

    def load(row: int, column: int) -> Vector:
        return k.load(positions + position_bytes * (row * side + column))

    def store(row: int, column: int, value: Vector) -> None:
        k.store(then(value + offset), out + out_row * row + out_column * column)

    transforms.times_both(k, (down.output, across.output), load, store)
    left = choose(whole, 0, rows)
    with k.loop(left) as row, k.loop(columns) as column:
        value = k.load(scratch + (row.i * wide + column.i) * vector)
        k.store(value, target + row_bytes * row.i + column_bytes * column.i)
    k.done()
    return k
