"""Winograd's convolution: input transform, products, output transform; and its gradients.

The gradient of the input is a convolution of the output's gradient with flipped filters.
"""

import math
from collections.abc import Sequence
from operator import index

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.epilogue import NOTHING, Kind, Rectifier, rectifying
from demitasse.backends.kernels.filter_packing import Gather
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language.instructions import Module
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import (
    Address,
    CompiledKernel,
    Struct,
    Values,
    compile_kernels,
)
from demitasse.backends.kernels.language.values import FLOAT, INT, Word, minimum
from demitasse.backends.kernels.products import ROWS, product_sums
from demitasse.backends.kernels.winograd import WinogradSchedule
from demitasse.backends.kernels.winograd.blocks import Block, BlockedKernel, BlockFields, each_block
from demitasse.backends.kernels.winograd.filters import filter_gradient
from demitasse.backends.kernels.winograd.matrices import Filtering
from demitasse.backends.kernels.winograd.transforms import (
    Outputs,
    TiledFields,
    TiledOutputFields,
    input_transform,
    output_transform,
)

COLUMNS = 5
"""Integers of an entry of the table of panels."""


class ProductFields(Struct):
    """Filters at each position, (channels, filters), and panels of them."""

    filters: Address
    position_bytes: Word
    """Bytes from one position's filters to the next's."""
    chunk_bytes: Word
    """Bytes from one chunk's filters to the next's if each has its own; else 0."""
    channels: Word
    """Channels of a group."""
    panels: Word
    """Number of panels of all groups' filters."""
    panel_table: Address
    """Columns: address of the kernel; bytes from the beginning of a tile, of a position's filters
    and of a tile's sums to the panel's; bytes of a row of the panel."""


def product_values(schedule: WinogradSchedule, *, gradient: bool = False) -> Values:
    """Return the values of the fields, for products or for the gradient of the filters."""
    c, m = (
        schedule.channels // schedule.groups,
        schedule.filters // schedule.groups // schedule.phases,
    )
    counts = [c] if gradient else schedule.block_tiles
    vectors = {panel.vectors for panel in schedule.panels}
    kernels = {one: product_kernel(schedule.width, one, counts, adds=gradient) for one in vectors}
    compile_kernels(kernels.values(), schedule.tuning.threads)
    rows = [
        (
            index(kernels[panel.vectors]),
            panel.part // schedule.phases * c * FLOAT,
            panel.start * FLOAT,
            (panel.part * m + panel.first) * FLOAT,
            panel.vectors * schedule.width * FLOAT,
        )
        for panel in schedule.panels
    ]
    return ProductFields.values(
        position_bytes=schedule.filter_position_stride * FLOAT,
        chunk_bytes=schedule.filter_size * FLOAT if gradient else 0,
        channels=c,
        panels=len(rows),
        panel_table=np.array(rows, np.int64),
    )


def multiply_tiles(
    k: Kernel, f: ProductFields, block: Block, positions: int, *, gradient: bool = False
) -> None:
    """Write the products at this thread's positions, panel by panel.

    They are the sums of the tiles times the filters, or are added to the gradient of the filters.
    """
    tiles, sums = block.fields.tiles, block.fields.sums
    filters = f.filters + block.chunk * f.chunk_bytes
    begin, end = block.bounds(positions)
    with k.loop(end, begin) as position, k.loop(f.panels) as panel:
        entry = f.panel_table + panel.i * (COLUMNS * INT)
        kernel, tile, filter_, total, row_bytes = k.load_words(entry, COLUMNS)
        a = block.place(tiles, position.i) + tile
        b = filters + position.i * f.position_bytes + filter_
        c = block.place(sums, position.i) + total
        if gradient:
            k.call_at(
                kernel, a, FLOAT, tiles.tile_bytes, c, sums.tile_bytes, b, row_bytes,
                f.channels, block.tiles, block.again,
            )  # fmt: skip
        else:
            k.call_at(
                kernel, a, tiles.tile_bytes, FLOAT, b, row_bytes, c, sums.tile_bytes,
                block.tiles, f.channels, 0,
            )  # fmt: skip


TILE_COST = 0.25
"""Time of a register tile besides its rows, in rows."""

UNROLLED = {4: 1, 8: 4, 16: 4}
"""Floats of a vector -> steps of the unrolled innermost loop; two steps of 4 floats would spill."""


def register_rows(counts: Sequence[int], most: int) -> int:
    """Return the rows of register tiles for some numbers of rows: few tiles, few rows twice."""

    def cost(rows: int) -> float:
        return sum(math.ceil(count / rows) * (rows + TILE_COST) for count in counts)

    return min(range(min(most, *counts), 0, -1), key=cost)


def product_kernel(
    width: int, vectors: int, counts: Sequence[int], *, adds: bool = False
) -> CompiledKernel:
    """Return the kernel of c = a @ b for some numbers of rows.

    Its arguments are: ``a``, the bytes from one of its rows to the next, the bytes from one of its
    columns to the next; ``b``, the bytes from one of its rows to the next; ``c``, the bytes from
    one of its rows to the next; rows, the length of the sums, whether they are added to ``c``. A
    kernel that never ``adds`` takes columns of ``a`` and rows of ``b`` that are contiguous.
    """
    rows = register_rows(counts, ROWS[width][vectors])
    name = f"{'adding' if adds else 'packed'}_{rows}of{vectors}x{width}"

    def module(of: Module) -> None:
        k = Kernel(of, name, 10, width)
        _write(k, vectors, rows, adds=adds)
        k.done()

    return CompiledKernel(name, module)


def _write(k: Kernel, vectors: int, rows: int, *, adds: bool) -> None:
    a, a_row_bytes, a_column_bytes, b, b_row_bytes, c, c_row_bytes, count, length, again = (
        k.arguments
    )
    unrolled, words, step = 1, [], k.word(0)
    if not adds:
        a_column_bytes, b_row_bytes = k.word(FLOAT), k.word(k.vector_bytes * vectors)
        unrolled, words = UNROLLED[k.width], [b + length * b_row_bytes]  # the next panel
        step = k.prefetch_step(unrolled * k.vector_bytes * vectors, (count + (rows - 1)) // rows)

    with k.loop(count, 0, rows, words=words) as tile:
        first = minimum(tile.i, count - rows)  # the last tile begins early
        sums, tile.words = product_sums(
            k, length, a + first * a_row_bytes, [a_row_bytes * row for row in range(rows)],
            a_column_bytes, b, b_row_bytes, vectors, unrolled, tile.words, step,
        )  # fmt: skip
        for row in range(rows):
            target = c + (first + row) * c_row_bytes
            places = [target + k.vector_bytes * j for j in range(vectors)]
            found = list(zip(sums[row * vectors :], places, strict=False))
            if adds:
                with k.when(first + row >= tile.i):  # not in the tile before
                    k.accumulate(found, again)
            else:
                for total, place in found:
                    k.store(total, place)


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


@ConvolutionFields.kernel("convolve")
def _kernel(k: Kernel, f: ConvolutionFields, of: Filtering, *, kind: Kind, dilated: bool) -> None:
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
            then = rectifying(k, f.rectifier, channel, kind)
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

    recorded = ("take_offsets",)

    def __init__(
        self, schedule: WinogradSchedule, x: Images, y: Images, then: Rectifier = NOTHING
    ) -> None:
        self._offsets, dilated = aligned(schedule.sum_stride), schedule.dilation != (1, 1)
        self._rectifier = then.numbers(schedule.sum_stride)
        channels = np.arange(schedule.filters) % (schedule.filters // schedule.phases)
        self._gather = Gather(channels, schedule.tuning)
        super().__init__(
            schedule,
            _kernel(schedule.width, schedule.filtering, kind=then.kind, dilated=dilated),
            ConvolutionFields,
            stages=3,  # input transform; products; output transform
            products=product_values(schedule),
            x=TiledFields.tiled(x, schedule),
            y=TiledOutputFields.tiled(y, schedule, read=False),
            rectifier=self._rectifier,
            offsets=self._offsets,
        )

    def take_offsets(self, offsets: np.ndarray) -> None:
        """Copy new offsets, one for each output channel; the initial offsets are zeros."""
        self._gather(offsets, self._offsets)

    def take_slopes(self, slopes: np.ndarray) -> None:
        """Copy new slopes of negative sums: one for each output channel, or one for all."""
        by_phase = self._rectifier[: self.schedule.filters].reshape(self.schedule.phases, -1)
        by_phase[...] = slopes

    def __call__(
        self, source: np.ndarray, target: np.ndarray, filters: np.ndarray, scratch: np.ndarray
    ) -> None:
        """Convolve ``source`` with transformed filters.

        ``scratch`` has :attr:`scratch_size` elements or more.
        """
        self.run(scratch, {"products.filters": filters, "x.at": source, "y.at": target})


class GradientFields(Struct):
    """A filter gradient; each chunk has its own sums."""

    blocks: BlockFields
    products: ProductFields
    x: TiledFields
    y: TiledFields
    """The gradient of the output."""
    offsets: Address
    """The gradient of the bias, chunk by chunk."""


@GradientFields.kernel("gradient")
def _gradient_kernel(k: Kernel, f: GradientFields, of: Filtering, *, dilated: bool) -> None:
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

    def __init__(self, schedule: WinogradSchedule, x: Images, y: Images) -> None:
        schedule = schedule.filter_gradient
        self.sums_size = schedule.chunks * schedule.filter_size
        self._offsets = np.zeros((schedule.chunks, schedule.sum_stride), np.float32)
        self._back = filter_gradient(schedule)
        filters = np.arange(schedule.filters)  # each chunk has a part of their offsets
        self._add_bias = Gather(filters, schedule.tuning, schedule.chunks, schedule.sum_stride)
        super().__init__(
            schedule,
            _gradient_kernel(
                schedule.width, schedule.filtering, dilated=schedule.dilation != (1, 1)
            ),
            GradientFields,
            stages=2,  # both input transforms; products
            products=product_values(schedule, gradient=True),
            x=TiledFields.tiled(x, schedule),
            y=TiledFields.tiled(y, schedule, read=False),
            offsets=self._offsets,
        )

    def __call__(
        self, source: np.ndarray, dy: np.ndarray, weight: np.ndarray, bias: np.ndarray | None,
        sums: np.ndarray, scratch: np.ndarray,
    ) -> None:  # fmt: skip
        """Write the gradients of the weights, in C order, and of the bias, (M,)."""
        self.run(scratch, {"products.filters": sums, "x.at": source, "y.at": dy})
        self._back(sums, weight)
        if bias is not None:
            self._add_bias(self._offsets, bias)
