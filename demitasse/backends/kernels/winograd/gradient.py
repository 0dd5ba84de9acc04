"""The gradient of a convolution's filters over tiles: sums of products at the points."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import compiled, later
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Arguments, Struct, Values
from demitasse.backends.kernels.language.words import FLOAT, Word
from demitasse.backends.kernels.products.matrix import matrix_products
from demitasse.backends.kernels.winograd.cut import ImageFields, Piece, Points, cut, image_values
from demitasse.backends.kernels.winograd.filters import FilterGradient
from demitasse.backends.kernels.winograd.matrices import Filtering
from demitasse.backends.kernels.winograd.multiply import ProductFields, each_panel, product_values
from demitasse.backends.kernels.winograd.scratch import Scratch
from demitasse.backends.kernels.winograd.strips import Block, StripFields, each_block
from demitasse.backends.kernels.winograd.tiling import Tiling
from demitasse.backends.kernels.winograd.transforms import transform

__all__ = ["TiledGradient", "WinogradGradient", "sum_last"]


class GradientFields(Struct):
    """Arguments of the Winograd filter gradient; each chunk has its own sums."""

    strips: StripFields
    """The strips."""
    products: ProductFields
    """The products at the points; the filters are what is summed."""
    x: ImageFields
    """The convolution's input."""
    y: ImageFields
    """The gradient of its output."""
    offsets: Address
    """Address of the first chunk's gradient of the bias."""


@cache
def _kernel(of: Filtering, width: int) -> int:
    """Return the address of the kernel for filters of these matrices."""
    name = f"gradient{of.name}x{width}"

    def write(module: Any) -> None:
        _write(module, name, of, width)

    return compiled(name, write, name)[name]


def _write(module: Any, name: str, of: Filtering, width: int) -> None:
    down, across = of
    forth = transform(module, "forth", (down.input, across.input), width)
    turn = transform(module, "turn", (down.output.T, across.output.T), width)
    k = Kernel(module, name, 1, width, exported=True)
    f = GradientFields.read(k)
    p = f.products
    tile_bytes, tile_point_bytes = p.tile_stride * FLOAT, p.tile_point_stride * FLOAT
    sum_bytes, sum_point_bytes = p.sum_stride * FLOAT, p.sum_point_stride * FLOAT
    with each_block(k, f.strips) as block:
        tiles = Points(block.stack, tile_bytes, tile_point_bytes)
        dy = Points(block.stack + p.sums_bytes, sum_bytes, sum_point_bytes)
        with block.stage(0):
            cut(k, f.strips, f.x, block, forth, Piece.of_input(of), tiles)
            cut(k, f.strips, f.y, block, turn, Piece.of_output(of), dy)
        with block.stage(1):
            with each_panel(k, p, block, of.points) as panel:
                k.call_at(
                    panel.product, panel.tiles, FLOAT, tiles.tile_bytes, panel.sums,
                    dy.tile_bytes, panel.filters, panel.row_bytes, p.channels, block.tiles,
                    block.again, panel.rests,
                )  # fmt: skip
            last = dy.at + dy.point_bytes * (of.points - 1)
            sum_last(k, p, block, last, f.offsets)
    k.done()


STAGES = 2
"""Stages of a block: both input transforms, and products."""


def sum_last(k: Kernel, f: ProductFields, block: Block, dy: Word, offsets: Word) -> None:
    """Write the sum over a block's tiles at the last point, where each sums its outputs."""
    sums = offsets + block.chunk * f.sum_stride * FLOAT
    begin, end = block.bounds(f.sum_stride // k.width)
    with k.loop(end, begin) as vector:
        here = vector.i * k.vector_bytes
        with k.loop(block.tiles, vectors=[k.constant(0.0)], words=[dy + here]) as tile:
            [total], [at] = tile.vectors, tile.words
            tile.vectors, tile.words = [total + k.load(at)], [at + f.sum_stride * FLOAT]
        k.accumulate([(tile.vectors[0], sums + here)], block.again)


class TiledGradient:
    """Base of the Winograd gradients of weights and bias.

    Args:
        tiling: The convolution.
        x: Its input.
        y: The gradient of its output.
        kernel: Address of the kernel.

    Attributes:
        scratch_size: Elements of scratch memory that a call takes.

    Raises:
        ValueError: A vector's channels are not contiguous.
    """

    def __init__(self, tiling: Tiling, x: Images, y: Images, kernel: int) -> None:
        self.tiling, self._kernel = tiling, kernel
        self._scratch = Scratch(tiling)
        self.scratch_size = self._scratch.size
        self._chunks = 1 if tiling.shared else tiling.chunks
        self._offsets = np.zeros((self._chunks, tiling.sum_stride), np.float32)
        self._fields: dict[str, Values | np.ndarray] = {
            "x": image_values(x, tiling.size, tiling.width, tiling.sources),
            "y": image_values(y, tiling.output, tiling.width),
            "offsets": self._offsets,
        }

    def _take(self, of: type[Struct], fields: Mapping[str, Any]) -> None:
        """Make the calls of the kernel, with its own fields beside those of the images."""
        self._calls = [
            Arguments(of.values(strips=strips, **self._fields, **fields))
            for strips in self._scratch.calls(STAGES)
        ]

    def _run(self, scratch: np.ndarray, each: Mapping[str, np.ndarray]) -> None:
        """Run them, with what changes from call to call."""
        values: dict[str, np.ndarray] = {**self._scratch.divide(scratch), **each}
        for call in self._calls:
            call.run(self._kernel, self.tiling.threads, values)

    def _write_bias(self, bias: np.ndarray | None) -> None:
        """Write the gradient of the bias, if there is one; each chunk has a part of it."""
        if bias is not None:
            later.put(self._add_up, (bias,), bias)

    def _add_up(self, bias: np.ndarray) -> None:
        bias[...] = self._offsets[:, : self.tiling.filters].sum(axis=0)

    @property
    def code(self) -> str:
        """Name of what runs."""
        return self.tiling.code


class WinogradGradient(TiledGradient):
    """The gradients of a convolution's weights and bias.

    Args:
        tiling: The convolution.
        x: Its input.
        y: The gradient of its output.

    Attributes:
        sums_size: Elements of the chunks' sums that it takes.

    Raises:
        ValueError: A vector's channels are not contiguous.
    """

    def __init__(self, tiling: Tiling, x: Images, y: Images) -> None:
        tiling = tiling.filter_gradient
        super().__init__(tiling, x, y, _kernel(tiling.filtering, tiling.width))
        self.sums_size = self._chunks * tiling.filter_size
        self._back = FilterGradient(tiling, self._chunks)
        products = product_values(
            tiling,
            matrix_products(tiling.width),
            {tiling.channels // tiling.groups},
            self._scratch.sums_bytes,
            tiling.filter_size,
        )
        self._take(GradientFields, {"products": products})

    def __call__(
        self,
        source: np.ndarray,
        dy: np.ndarray,
        weight: np.ndarray,
        bias: np.ndarray | None,
        scratch: np.ndarray,
        sums: np.ndarray,
    ) -> None:
        """Write the gradients.

        Args:
            source: The input, in the memory that ``x`` describes.
            dy: The gradient of the output, in that of ``y``.
            weight: For the gradient of the weights, in C order.
            bias: For that of the bias; None for none. Shape: (M,).
            scratch: At least :attr:`scratch_size` elements.
            sums: At least :attr:`sums_size` elements.
        """
        self._run(scratch, {"products.filters": sums, "x.at": source, "y.at": dy})
        self._back(sums, weight)
        self._write_bias(bias)
