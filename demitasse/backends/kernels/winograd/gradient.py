"""Gradients of Winograd convolutions with respect to weights and bias."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import command_queue
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Arguments, Code, Struct
from demitasse.backends.kernels.language.words import FLOAT, Vector, Word, choose, transposed
from demitasse.backends.kernels.products import matrix_products
from demitasse.backends.kernels.winograd import STEP, WinogradSchedule
from demitasse.backends.kernels.winograd.blocks import Block, ScratchLayout, StripFields, each_block
from demitasse.backends.kernels.winograd.filters import FilterGradient
from demitasse.backends.kernels.winograd.matrices import Filtering, Matrices
from demitasse.backends.kernels.winograd.products import ProductFields, each_panel, product_values
from demitasse.backends.kernels.winograd.strided import (
    PHASES,
    PartFields,
    each_part,
    part_values,
    phase_taps,
    rows_of_taps,
    tap_places,
)
from demitasse.backends.kernels.winograd.transforms import (
    ImageFields,
    Positions,
    cut,
    image_values,
    times_both,
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


class StridedGradientFields(GradientFields):
    """A filter gradient for stride 2."""

    part: PartFields
    weights: Address
    """The gradient of the weights."""
    product: Code
    remainders: Address
    """Table of the remainders' kernels."""


STAGES = 2
"""Stages of a block: both input transforms, and products."""


@contextmanager
def _each_block(
    k: Kernel, f: GradientFields, of: Filtering
) -> Iterator[tuple[Block, Positions, Positions]]:
    """Write a loop over blocks, given transformed tiles of the input and of the gradient.

    The bias is summed behind the body.
    """
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
            yield block, tiles, dy
            _sum_last(k, p, block, dy.at + dy.position_bytes * (of.positions - 1), f.offsets)


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


@GradientFields.kernel("gradient")
def _kernel(k: Kernel, f: GradientFields, of: Filtering) -> None:
    p = f.products
    with (
        _each_block(k, f, of) as (block, tiles, dy),
        each_panel(k, p, block, of.positions) as panel,
    ):
        k.call_at(
            panel.product, panel.tiles, FLOAT, tiles.tile_bytes, panel.sums, dy.tile_bytes,
            panel.filters, panel.row_bytes, p.channels, block.tiles, block.again,
            panel.remainders,
        )  # fmt: skip


@StridedGradientFields.kernel("strided_gradient")
def _strided_kernel(
    k: Kernel, f: StridedGradientFields, of: Filtering, panel: int, window: int
) -> None:
    """Write the kernel for panels of vectors, and windows of up to twice the taps."""
    with _each_block(k, f, of) as (block, tiles, dy):
        _multiply(k, f, block, of.down, tiles, dy, (panel, window))


class TiledGradient:
    """Base of the Winograd gradients of weights and bias.

    Attributes:
        scratch_size: Elements of scratch memory for a call.
    """

    _calls: list[Arguments]

    def __init__(self, tiling: WinogradSchedule, x: Images, y: Images, kernel: int) -> None:
        self.tiling, self._kernel = tiling, kernel
        self._scratch = ScratchLayout(tiling)
        self.scratch_size = self._scratch.size
        self._chunks = 1 if tiling.shared else tiling.chunks
        self._offsets = np.zeros((self._chunks, tiling.sum_stride), np.float32)
        self._fields = {
            "x": image_values(x, tiling.size, tiling.width, tiling.sources),
            "y": image_values(y, tiling.output, tiling.width),
        }

    def _take(self, of: type[GradientFields], **fields: Any) -> None:
        """Make the calls of the kernel, with further fields."""
        self._calls = [
            Arguments(of.values(strips=strips, offsets=self._offsets, **self._fields, **fields))
            for strips in self._scratch.calls(STAGES)
        ]

    def _run(
        self, scratch: np.ndarray, bias: np.ndarray | None, each: Mapping[str, np.ndarray]
    ) -> None:
        """Run the calls, and write the gradient of the bias, of which each chunk has a part."""
        values: dict[str, np.ndarray] = {**self._scratch.divide(scratch), **each}
        for call in self._calls:
            call.run(self._kernel, self.tiling.threads, values)
        if bias is not None:
            command_queue.enqueue(self._add_up, (bias,), bias)

    def _add_up(self, bias: np.ndarray) -> None:
        bias[...] = self._offsets[:, : self.tiling.filters].sum(axis=0)


class WinogradGradient(TiledGradient):
    """The gradients of a convolution's weights and bias, with ``sums_size`` elements of sums."""

    def __init__(self, tiling: WinogradSchedule, x: Images, y: Images) -> None:
        tiling = tiling.filter_gradient
        super().__init__(tiling, x, y, _kernel(tiling.width, tiling.filtering))
        self.sums_size = self._chunks * tiling.filter_size
        self._back = FilterGradient(tiling, self._chunks)
        products = product_values(
            tiling,
            matrix_products(tiling.width),
            {tiling.channels // tiling.groups},
            self._scratch.sums_bytes,
            tiling.filter_size,
        )
        self._take(GradientFields, products=products)

    def __call__(
        self, source: np.ndarray, dy: np.ndarray, weight: np.ndarray, bias: np.ndarray | None,
        scratch: np.ndarray, sums: np.ndarray,
    ) -> None:  # fmt: skip
        """Write the gradients of the weights, in C order, and of the bias, (M,)."""
        self._run(scratch, bias, {"products.filters": sums, "x.at": source, "y.at": dy})
        self._back(sums, weight)


def _multiply(
    k: Kernel, f: StridedGradientFields, block: Block, of: Matrices, tiles: Positions,
    dy: Positions, sizes: tuple[int, int],
) -> None:  # fmt: skip
    """Write the gradient of all filters by a block's tiles."""
    (panel, window), area, vector_bytes = sizes, (STEP * of.taps) ** 2, k.vector_bytes
    with each_part(k, f.part, block, panel, apart=True) as part:
        with k.loop(PHASES) as phase:
            first = phase.i * f.part.channels + part.channel
            with k.loop(of.side**2) as position:
                k.call_at(
                    f.product, tiles.at + position.i * tiles.position_bytes + first * FLOAT, FLOAT,
                    tiles.tile_bytes, dy.at + position.i * dy.position_bytes + part.filter * FLOAT,
                    dy.tile_bytes, part.values + position.i * f.part.position_bytes,
                    panel * vector_bytes, part.channels, block.tiles, 0, f.remainders,
                )  # fmt: skip
            own = part.taps + phase_taps(phase.i, of) * vector_bytes
            with k.loop(panel) as vector, k.loop(part.channels) as channel:
                target = own + (vector.i * part.channels + channel.i) * (area * vector_bytes)
                source = part.values + (channel.i * panel + vector.i) * vector_bytes
                _to_taps(k, of, source, f.part.position_bytes, target)
        weights = f.weights + part.weights * FLOAT
        with k.loop(panel) as vector, k.loop(part.channels) as channel:
            taps = part.taps + (vector.i * part.channels + channel.i) * (area * vector_bytes)
            first = weights + channel.i * f.part.channel_stride * FLOAT
            rows = rows_of_taps(k, first, vector.i, f.part)
            _add_rows(k, taps, tap_places(window, of), rows, block.again)


def _to_taps(k: Kernel, of: Matrices, positions: Word, position_bytes: Word, target: Word) -> None:
    matrix, wide = of.filter.T, STEP * of.taps

    def position(row: int, column: int) -> Vector:
        return k.load(positions + position_bytes * (row * of.side + column))

    def put(row: int, column: int, tap: Vector) -> None:
        k.store(tap, target + STEP * (row * wide + column) * k.vector_bytes)

    times_both(k, (matrix, matrix), position, put)


def _add_rows(k: Kernel, taps: Word, places: list[int], rows: list[Word], adds: Word) -> None:
    """Write vectors of filters, one for each tap, as one row of taps for each filter."""
    none = k.constant(0.0)
    for first in range(0, len(places), k.width):
        here = places[first : first + k.width]
        vectors = [k.load(taps + place * k.vector_bytes) for place in here]
        vectors += [none] * (k.width - len(here))
        some = k.lane_mask(k.word(len(here)))
        for vector, row in zip(transposed(vectors), rows, strict=True):
            target = row + first * FLOAT
            before = choose(adds > 0, k.masked_load(target, some), none)
            k.masked_store(before + vector, target, some)


class StridedGradient(TiledGradient):
    """The gradients of the weights and the bias of a convolution of stride 2."""

    def __init__(self, tiling: WinogradSchedule, x: Images, y: Images) -> None:
        tiling = tiling.filter_gradient
        width, part = tiling.width, tiling.part
        kernel = _strided_kernel(width, tiling.filtering, tiling.panel, tiling.window)
        super().__init__(tiling, x, y, kernel)
        counts = {part.channels, tiling.part_channels % part.channels} - {0}
        product = matrix_products(width)(tiling.panel, counts)
        self._take(
            StridedGradientFields,
            products=product_values(tiling, None, (), self._scratch.sums_bytes),
            part=part_values(tiling, self._scratch),
            product=product.address,
            remainders=product.remainders,
        )

    def __call__(
        self, source: np.ndarray, dy: np.ndarray, weight: np.ndarray, bias: np.ndarray | None,
        scratch: np.ndarray,
    ) -> None:  # fmt: skip
        """Write the gradients, as :class:`WinogradGradient` without sums."""
        self._run(scratch, bias, {"weights": weight, "x.at": source, "y.at": dy})
