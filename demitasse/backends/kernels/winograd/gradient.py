"""Gradients of Winograd convolutions with respect to weights and bias."""

import numpy as np

from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import call_recorder
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Struct
from demitasse.backends.kernels.winograd import WinogradSchedule
from demitasse.backends.kernels.winograd.blocks import Block, BlockedKernel, BlockFields, each_block
from demitasse.backends.kernels.winograd.filters import filter_gradient
from demitasse.backends.kernels.winograd.matrices import Filtering
from demitasse.backends.kernels.winograd.products import (
    ProductFields,
    multiply_tiles,
    product_values,
)
from demitasse.backends.kernels.winograd.transforms import TiledFields, input_transform


class GradientFields(Struct):
    """A filter gradient; each chunk has its own sums."""

    blocks: BlockFields
    products: ProductFields
    x: TiledFields
    y: TiledFields
    """The gradient of the output."""
    offsets: Address
    """The gradient of the bias, chunk by chunk."""


STAGES = 2
"""Stages of a block: both input transforms, and products."""


@GradientFields.kernel("gradient")
def _kernel(k: Kernel, f: GradientFields, of: Filtering, *, dilated: bool) -> None:
    x_matrices = of.down.input, of.across.input
    y_matrices = of.down.output.T, of.across.output.T
    with each_block(k, f.blocks) as block:
        with block.stage(0):
            tiles, sums, step = f.blocks.tiles, f.blocks.sums, of.outputs
            input_transform(k, block, f.x, x_matrices, step, tiles, dilated=dilated)
            input_transform(k, block, f.y, y_matrices, step, sums, dilated=dilated)
        with block.stage(1):
            multiply_tiles(k, f.products, block, of.positions, gradient=True)
            _sum_last(k, f, block, of.positions - 1)


def _sum_last(k: Kernel, f: GradientFields, block: Block, last: int) -> None:
    """Write the sum over a block's tiles at the last position, which sums a tile's outputs."""
    tile_bytes = f.blocks.sums.tile_bytes
    dy, sums = block.place(f.blocks.sums, last), f.offsets + block.chunk * tile_bytes
    begin, end = block.bounds(tile_bytes // k.vector_bytes)
    with k.loop(end, begin) as vector:
        here = vector.i * k.vector_bytes
        with k.loop(block.tiles, vectors=[k.constant(0.0)], words=[dy + here]) as tile:
            [total], [at] = tile.vectors, tile.words
            tile.vectors, tile.words = [total + k.load(at)], [at + tile_bytes]
        k.accumulate([(tile.vectors[0], sums + here)], block.again)


class WinogradGradient(BlockedKernel):
    """The gradients of a convolution's weights and bias.

    Attributes:
        sums_size: Elements of the chunks' sums.
    """

    def __init__(self, tiling: WinogradSchedule, x: Images, y: Images) -> None:
        tiling = tiling.filter_gradient
        self.sums_size = tiling.chunks * tiling.filter_size
        self._offsets = np.zeros((tiling.chunks, tiling.sum_stride), np.float32)
        self._back = filter_gradient(tiling)
        super().__init__(
            tiling,
            _kernel(tiling.width, tiling.filtering, dilated=tiling.dilation != (1, 1)),
            GradientFields,
            STAGES,
            products=product_values(tiling, gradient=True),
            x=TiledFields.tiled(x, tiling),
            y=TiledFields.tiled(y, tiling, read=False),
            offsets=self._offsets,
        )

    def __call__(
        self, source: np.ndarray, dy: np.ndarray, weight: np.ndarray, bias: np.ndarray | None,
        sums: np.ndarray, scratch: np.ndarray,
    ) -> None:  # fmt: skip
        """Write the gradients of the weights, in C order, and of the bias, (M,)."""
        self.run(scratch, {"products.filters": sums, "x.at": source, "y.at": dy})
        self._back(weight, sums)
        if bias is not None:  # each chunk has a part of the sum
            call_recorder.call(self._add_up, bias)

    def _add_up(self, bias: np.ndarray) -> None:
        bias[...] = self._offsets[:, : self.tiling.filters].sum(axis=0)
