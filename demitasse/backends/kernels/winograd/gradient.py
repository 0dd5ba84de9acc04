"""Gradients of Winograd convolutions with respect to weights and bias."""

import numpy as np

from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import call_recorder
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Arguments, Struct, Values
from demitasse.backends.kernels.language.values import FLOAT, Word
from demitasse.backends.kernels.products import matrix_products
from demitasse.backends.kernels.winograd import WinogradSchedule
from demitasse.backends.kernels.winograd.blocks import Block, ScratchLayout, StripFields, each_block
from demitasse.backends.kernels.winograd.filters import FilterGradient
from demitasse.backends.kernels.winograd.matrices import Filtering
from demitasse.backends.kernels.winograd.products import ProductFields, each_panel, product_values
from demitasse.backends.kernels.winograd.transforms import (
    ImageFields,
    Positions,
    cut,
    image_values,
    transform,
)


class GradientFields(Struct):
    """A filter gradient; each chunk has its own sums."""

    strips: StripFields
    products: ProductFields
    x: ImageFields
    y: ImageFields
    """The gradient of the output."""
    offsets: Address
    """The gradient of the bias, chunk by chunk."""


STAGES = 2
"""Stages of a block: both input transforms, and products."""


@GradientFields.kernel("gradient")
def _kernel(k: Kernel, f: GradientFields, of: Filtering) -> None:
    (down, across), p = of, f.products
    forth = transform(k.module, "forth", (down.input, across.input), k.width)
    matrices = down.output.T, across.output.T
    transposed_output = transform(k.module, "transposed_output", matrices, k.width)
    tile_bytes, tile_position_bytes = p.tile_stride * FLOAT, p.tile_position_stride * FLOAT
    sum_bytes, sum_position_bytes = p.sum_stride * FLOAT, p.sum_position_stride * FLOAT
    with each_block(k, f.strips) as block:
        tiles = Positions(block.stack, tile_bytes, tile_position_bytes)
        dy = Positions(block.stack + p.sums_bytes, sum_bytes, sum_position_bytes)
        with block.stage(0):
            cut(k, f.strips, f.x, block, forth, of.inputs, of.outputs, tiles)
            cut(k, f.strips, f.y, block, transposed_output, of.outputs, of.outputs, dy)
        with block.stage(1):
            with each_panel(k, p, block, of.positions) as panel:
                k.call_at(
                    panel.product, panel.tiles, FLOAT, tile_bytes, panel.sums, sum_bytes,
                    panel.filters, panel.row_bytes, p.channels, block.tiles, block.again,
                    panel.remainders,
                )  # fmt: skip
            _sum_last(k, p, block, dy.at + sum_position_bytes * (of.positions - 1), f.offsets)


def _sum_last(k: Kernel, f: ProductFields, block: Block, dy: Word, offsets: Word) -> None:
    """Write the sum over a block's tiles at the last position, which sums a tile's outputs."""
    sums = offsets + block.chunk * f.sum_stride * FLOAT
    begin, end = block.bounds(f.sum_stride // k.width)
    with k.loop(end, begin) as vector:
        here = vector.i * k.vector_bytes
        with k.loop(block.tiles, vectors=[k.constant(0.0)], words=[dy + here]) as tile:
            [total], [at] = tile.vectors, tile.words
            tile.vectors, tile.words = [total + k.load(at)], [at + f.sum_stride * FLOAT]
        k.accumulate([(tile.vectors[0], sums + here)], block.again)


class WinogradGradient:
    """The gradients of a convolution's weights and bias.

    Attributes:
        scratch_size: Elements of scratch memory for a call.
        sums_size: Elements of the chunks' sums.
    """

    def __init__(self, tiling: WinogradSchedule, x: Images, y: Images) -> None:
        self.tiling = tiling = tiling.filter_gradient
        self._kernel = _kernel(tiling.width, tiling.filtering)
        self._scratch = ScratchLayout(tiling)
        self.scratch_size = self._scratch.size
        chunks = 1 if tiling.shared else tiling.chunks
        self.sums_size = chunks * tiling.filter_size
        self._offsets = np.zeros((chunks, tiling.sum_stride), np.float32)
        self._back = FilterGradient(tiling, chunks)
        fields: dict[str, Values | np.ndarray] = {
            "x": image_values(x, tiling.size, tiling.width, tiling.pad),
            "y": image_values(y, tiling.output, tiling.width),
            "offsets": self._offsets,
            "products": product_values(
                tiling,
                matrix_products(tiling.width),
                {tiling.channels // tiling.groups},
                self._scratch.sums_bytes,
                tiling.filter_size,
            ),
        }
        self._calls = [
            Arguments(GradientFields.values(strips=strips, **fields))
            for strips in self._scratch.calls(STAGES)
        ]

    def __call__(
        self, source: np.ndarray, dy: np.ndarray, weight: np.ndarray, bias: np.ndarray | None,
        sums: np.ndarray, scratch: np.ndarray,
    ) -> None:  # fmt: skip
        """Write the gradients of the weights, in C order, and of the bias, (M,)."""
        each = {"products.filters": sums, "x.at": source, "y.at": dy}
        each |= self._scratch.divide(scratch)
        for call in self._calls:
            call.run(self._kernel, self.tiling.threads, each)
        self._back(sums, weight)
        if bias is not None:  # each chunk has a part of the sum
            call_recorder.call(self._add_up, bias)

    def _add_up(self, bias: np.ndarray) -> None:
        bias[...] = self._offsets[:, : self.tiling.filters].sum(axis=0)
