"""Winograd's convolution: input transform, products, output transform.

The same is the gradient of a convolution's input, which is a convolution of the output's gradient
with flipped filters.
"""

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.epilogue import NOTHING, Rectifier, rectifying
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Struct
from demitasse.backends.kernels.winograd import WinogradSchedule
from demitasse.backends.kernels.winograd.blocks import BlockedKernel, BlockFields, each_block
from demitasse.backends.kernels.winograd.matrices import Filtering
from demitasse.backends.kernels.winograd.products import (
    ProductFields,
    multiply_tiles,
    product_values,
)
from demitasse.backends.kernels.winograd.transforms import (
    Outputs,
    TiledFields,
    TiledOutputFields,
    input_transform,
    output_transform,
)


class ConvolutionFields(Struct):
    """A Winograd convolution."""

    blocks: BlockFields
    products: ProductFields
    x: TiledFields
    y: TiledOutputFields
    rectifier: Address
    """Numbers of the epilogue: one slope for each output channel, or the limits."""
    offsets: Address
    """One offset for each output channel."""


STAGES = 3
"""Stages of a block: input transform, products, output transform."""


@ConvolutionFields.kernel("convolve")
def _kernel(
    k: Kernel, f: ConvolutionFields, of: Filtering, *, limited: bool, dilated: bool
) -> None:
    tiles, sums, y, (down, across) = f.blocks.tiles, f.blocks.sums, f.y, of.outputs
    matrices = of.down.input, of.across.input
    with each_block(k, f.blocks) as block:
        with block.stage(0):
            input_transform(k, block, f.x, matrices, of.outputs, tiles, dilated=dilated)
        with block.stage(1):
            multiply_tiles(k, f.products, block, of.positions)
        with (
            block.stage(2),
            block.each_strip() as strip,
            y.each_vector(k, strip.image, dilated=dilated) as (phase, pixel, channel, _),
        ):
            row = strip.row * down - phase.top
            at = y.row(phase.image, 0) + phase.start + row * y.down_bytes + pixel
            offset = k.load(f.offsets + channel)
            then = rectifying(k, f.rectifier, channel, limited=limited)
            with k.loop(f.blocks.tile_columns) as tile:
                column = tile.i * across - phase.left
                outputs = Outputs(
                    at + column * y.across_bytes, y.down_bytes, y.across_bytes,
                    phase.rows - row, phase.columns - column, -row, -column,
                )  # fmt: skip
                first = block.place(sums, 0, strip.tile + tile.i) + channel
                output_transform(
                    k, of, first, sums.position_bytes, outputs, lambda total: then(total + offset)
                )


class WinogradConvolution(BlockedKernel):
    """A convolution of float32 images, with an offset and perhaps an epilogue."""

    def __init__(
        self, tiling: WinogradSchedule, x: Images, y: Images, then: Rectifier = NOTHING
    ) -> None:
        self._offsets, dilated = aligned(tiling.sum_stride), tiling.dilation != (1, 1)
        self._rectifier = then.numbers(tiling.sum_stride)
        super().__init__(
            tiling,
            _kernel(tiling.width, tiling.filtering, limited=then.limited, dilated=dilated),
            ConvolutionFields,
            STAGES,
            products=product_values(tiling),
            x=TiledFields.tiled(x, tiling),
            y=TiledOutputFields.tiled(y, tiling, read=False),
            rectifier=self._rectifier,
            offsets=self._offsets,
        )

    def take_offsets(self, offsets: np.ndarray) -> None:
        """Copy new offsets, one for each output channel; the initial offsets are zeros."""
        self._by_phase(self._offsets)[...] = offsets

    def take_slopes(self, slopes: np.ndarray) -> None:
        """Copy new slopes of negative sums: one for each output channel, or one for all."""
        self._by_phase(self._rectifier)[...] = slopes

    def _by_phase(self, numbers: np.ndarray) -> np.ndarray:
        """Return the numbers of the output's phases and channels as a matrix."""
        return numbers[: self.tiling.filters].reshape(self.tiling.phases, -1)

    def __call__(
        self, source: np.ndarray, target: np.ndarray, filters: np.ndarray, scratch: np.ndarray
    ) -> None:
        """Convolve ``source`` with transformed filters.

        ``scratch`` has :attr:`scratch_size` elements or more.
        """
        self.run(scratch, {"products.filters": filters, "x.at": source, "y.at": target})
