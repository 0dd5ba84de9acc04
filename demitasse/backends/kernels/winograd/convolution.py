"""A convolution over tiles: to the points, products there, and back.

The same is the gradient of a convolution's input, which is a convolution of the output's gradient
with the filters turned round.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import compiled
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Arguments, Struct, Values
from demitasse.backends.kernels.language.words import FLOAT, Word
from demitasse.backends.kernels.products.matrix import matrix_products
from demitasse.backends.kernels.rectifier import NOTHING, Rectifier
from demitasse.backends.kernels.winograd.back import back, join
from demitasse.backends.kernels.winograd.cut import ImageFields, Piece, Points, cut, image_values
from demitasse.backends.kernels.winograd.matrices import Matrices, matrices
from demitasse.backends.kernels.winograd.multiply import ProductFields, each_panel, product_values
from demitasse.backends.kernels.winograd.scratch import Scratch
from demitasse.backends.kernels.winograd.strips import StripFields, each_block
from demitasse.backends.kernels.winograd.tiling import Tiling
from demitasse.backends.kernels.winograd.transforms import transform

__all__ = ["WinogradConvolution"]


class ConvolutionFields(Struct):
    """Of a convolution over tiles."""

    strips: StripFields
    """The strips."""
    products: ProductFields
    """The products at the points."""
    x: ImageFields
    """The input."""
    y: ImageFields
    """The output; height and width are those before pooling."""
    rectifier: Word
    """Address of the rectifier's numbers: one slope for each output channel, or the limits."""
    offsets: Word
    """Address of one offset for each output channel."""


@cache
def _kernel(taps: int, width: int, *, pool: bool, limited: bool) -> int:
    """Return the address of the kernel.

    Args:
        taps: Of the filters.
        width: Floats of a vector.
        pool: Whether there is pooling.
        limited: Whether outputs have limits.
    """
    name = f"convolve{taps}x{width}{'pooled' if pool else ''}{'_limited' if limited else ''}"

    def write(module: Any) -> None:
        _write(module, name, matrices(taps), width, pool=pool, limited=limited)

    return compiled(name, write, name)[name]


def _write(module: Any, name: str, of: Matrices, width: int, *, pool: bool, limited: bool) -> None:
    side, step = of.side, of.outputs
    forth = transform(module, "forth", of.input, width)
    way_back = back(module, of, width, pool=pool, limited=limited)
    k = Kernel(module, name, 1, width, exported=True)
    f = ConvolutionFields.read(k)
    p = f.products
    tile_bytes, tile_point_bytes = p.tile_stride * FLOAT, p.tile_point_stride * FLOAT
    sum_bytes = p.sum_stride * FLOAT
    with each_block(k, f.strips) as block:
        tiles, sums = Points(block.stack, tile_bytes, tile_point_bytes), block.stack + p.sums_bytes
        with block.stage(0):
            cut(k, f.strips, f.x, block, forth, Piece(side, step, side - step), tiles)
        with block.stage(1), each_panel(k, p, block, side * side) as panel:
            k.call_at(
                panel.product, panel.tiles, tiles.tile_bytes, FLOAT, panel.filters,
                panel.row_bytes, panel.sums, sum_bytes, block.tiles, p.channels, 0,
                panel.rests,
            )  # fmt: skip
        with block.stage(2):
            steps = step, step // 2 if pool else step
            join(
                k, f.strips, p, f.y, block, way_back, steps, sums, f.offsets, f.rectifier,
                limited=limited,
            )  # fmt: skip
    k.done()


STAGES = 3
"""Of a block: to the points, products, and back."""


class WinogradConvolution:
    """A convolution of float32 images, with an offset and perhaps a rectifier and pooling.

    Args:
        tiling: The convolution.
        x: Its input.
        y: The output, pooled if there is pooling.
        then: What becomes of the sums.
        pool: Whether MAX pooling of 2 x 2 outputs, side by side, follows.

    Attributes:
        scratch_size: Elements of scratch memory that a call takes.

    Raises:
        ValueError: A vector's channels are not contiguous.
    """

    def __init__(
        self,
        tiling: Tiling,
        x: Images,
        y: Images,
        then: Rectifier = NOTHING,
        *,
        pool: bool = False,
    ) -> None:
        self.tiling, width = tiling, tiling.width
        self._kernel = _kernel(tiling.matrices.taps, width, pool=pool, limited=then.limited)
        self._scratch = Scratch(tiling)
        self.scratch_size = self._scratch.size
        self._offsets = aligned(tiling.sum_stride)
        self._rectifier = then.numbers(tiling.sum_stride)
        products = matrix_products(width, packed=True)
        fields: dict[str, Values | np.ndarray] = {
            "products": product_values(
                tiling, products, tiling.block_tiles, self._scratch.sums_bytes
            ),
            "x": image_values(x, tiling.size, width, tiling.pad),
            "y": image_values(y, tiling.output, width),
            "rectifier": self._rectifier,
            "offsets": self._offsets,
        }
        self._calls = [
            Arguments(ConvolutionFields.values(strips=strips, **fields))
            for strips in self._scratch.calls(STAGES)
        ]

    def take_offsets(self, offsets: np.ndarray) -> None:
        """Take new offsets, one for each output channel; at first they are zeros."""
        self._offsets[: offsets.shape[0]] = offsets

    def take_slopes(self, slopes: np.ndarray) -> None:
        """Take new slopes for what is below 0, one for each output channel, or one for all."""
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
            filters: At the points, as :class:`Filters` makes them.
            scratch: At least :attr:`scratch_size` elements.
        """
        each: dict[str, int | np.ndarray] = {
            **self._scratch.addresses(scratch),
            "products.filters": filters,
            "x.at": source,
            "y.at": target,
        }
        for call in self._calls:
            call.run(self._kernel, self.tiling.threads, each)

    @property
    def code(self) -> str:
        """Name of what runs."""
        return self.tiling.code
