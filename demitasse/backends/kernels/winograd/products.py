"""Products at the transform positions, of tiles and transformed filters."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from demitasse.backends.kernels.language import compiled
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Struct, Values
from demitasse.backends.kernels.language.values import FLOAT, INT, Word, minimum
from demitasse.backends.kernels.products import ROWS, product_sums
from demitasse.backends.kernels.winograd import WinogradSchedule
from demitasse.backends.kernels.winograd.blocks import Block

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


def product_values(tiling: WinogradSchedule, *, gradient: bool = False) -> Values:
    """Return the values of the fields, for products or for the gradient of the filters."""
    c, m = tiling.channels // tiling.groups, tiling.filters // tiling.groups // tiling.phases
    counts = [c] if gradient else tiling.block_tiles
    rows = [
        (
            product_kernel(tiling.width, panel.vectors, counts, adds=gradient),
            panel.part // tiling.phases * c * FLOAT,
            panel.start * FLOAT,
            (panel.part * m + panel.first) * FLOAT,
            panel.vectors * tiling.width * FLOAT,
        )
        for panel in tiling.panels
    ]
    return ProductFields.values(
        position_bytes=tiling.filter_position_stride * FLOAT,
        chunk_bytes=tiling.filter_size * FLOAT if gradient else 0,
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

UNROLLED = {4: 2, 8: 4, 16: 4}
"""Floats of a vector -> unrolled steps of the innermost loop where distances are known."""


def register_rows(counts: Sequence[int], most: int) -> int:
    """Return the rows of register tiles for some numbers of rows: few tiles, few rows twice."""

    def cost(rows: int) -> float:
        return sum(math.ceil(count / rows) * (rows + TILE_COST) for count in counts)

    return min(range(min(most, *counts), 0, -1), key=cost)


def product_kernel(width: int, vectors: int, counts: Sequence[int], *, adds: bool = False) -> int:
    """Return the address of the kernel of c = a @ b for some numbers of rows.

    Its arguments are: ``a``, the bytes from one of its rows to the next, the bytes from one of its
    columns to the next; ``b``, the bytes from one of its rows to the next; ``c``, the bytes from
    one of its rows to the next; rows, the length of the sums, whether they are added to ``c``. A
    kernel that never ``adds`` takes columns of ``a`` and rows of ``b`` that are contiguous.
    """
    rows = register_rows(counts, ROWS[width][vectors])
    name = f"{'adding' if adds else 'packed'}_{rows}of{vectors}x{width}"

    def module(of: Any) -> None:
        k = Kernel(of, name, 10, width, exported=True)
        _write(k, vectors, rows, adds=adds)
        k.done()

    return compiled(name, module, name)[name]


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
