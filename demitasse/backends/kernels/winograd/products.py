"""Products at the transform positions, of tiles and transformed filters."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Struct, Values
from demitasse.backends.kernels.language.values import FLOAT, INT, Word
from demitasse.backends.kernels.products import Panels
from demitasse.backends.kernels.winograd import WinogradSchedule
from demitasse.backends.kernels.winograd.blocks import Block

COLUMNS = 6
"""Integers of an entry of the table of panels."""


class ProductFields(Struct):
    """Matrices at each position: (tiles, channels), (channels, filters), (tiles, filters)."""

    tile_stride: Word
    """Elements from one tile of the input to the next."""
    tile_position_stride: Word
    """Elements from one position's tiles of the input to the next's."""
    filters: Address
    filter_position_stride: Word
    filter_chunk_stride: Word
    """Elements from one chunk's filters to the next's if each has its own; else 0."""
    sums_bytes: Word
    """Bytes from the beginning of a stack to the tiles of the output."""
    sum_stride: Word
    """Elements from one tile of the output to the next."""
    sum_position_stride: Word
    channels: Word
    """Channels of a group."""
    panels: Word
    """Number of panels of all groups' filters."""
    panel_table: Address
    """Columns: addresses of product and remainders; elements from the beginning of a position's
    tiles, filters and sums to the panel's; elements of a row of the panel's filters."""


class Panel(NamedTuple):
    """Some filters of a group at a position, in the kernel.

    All are addresses, of the first tile's channels and sums, but ``row_bytes``: the bytes from one
    channel's filters to the next's.
    """

    product: Word
    remainders: Word
    tiles: Word
    filters: Word
    sums: Word
    row_bytes: Word


@contextmanager
def each_panel(k: Kernel, f: ProductFields, block: Block, positions: int) -> Iterator[Panel]:
    """Write a loop over panels and this thread's positions."""
    filters = f.filters + block.chunk * f.filter_chunk_stride * FLOAT
    begin, end = block.bounds(k.word(positions))
    with k.loop(end, begin) as position, k.loop(f.panels) as panel:
        entry = f.panel_table + panel.i * (COLUMNS * INT)
        product, remainders, tile, filter_, total, row = k.load_words(entry, COLUMNS)
        yield Panel(
            product,
            remainders,
            block.stack + position.i * f.tile_position_stride * FLOAT + tile * FLOAT,
            filters + position.i * f.filter_position_stride * FLOAT + filter_ * FLOAT,
            block.stack + f.sums_bytes + position.i * f.sum_position_stride * FLOAT + total * FLOAT,
            row * FLOAT,
        )


def product_values(
    tiling: WinogradSchedule,
    products: Panels,
    counts: Iterable[int],
    sums_bytes: int,
    filter_chunk_stride: int = 0,
) -> Values:
    """Return the values of the fields.

    The products run for some ``counts`` of rows.
    """
    c, m = tiling.channels // tiling.groups, tiling.filters // tiling.groups
    rows = [
        (
            *products(vectors, counts).entry,
            group * c,
            group * tiling.filter_group_stride + first * c,
            group * m + first,
            vectors * tiling.width,
        )
        for group in range(tiling.groups)
        for vectors, first in tiling.panels
    ]
    table = np.array(rows, np.int64)
    return ProductFields.values(
        tile_stride=tiling.tile_stride,
        tile_position_stride=tiling.tile_position_stride,
        filter_position_stride=tiling.filter_position_stride,
        filter_chunk_stride=filter_chunk_stride,
        sums_bytes=sums_bytes,
        sum_stride=tiling.sum_stride,
        sum_position_stride=tiling.sum_position_stride,
        channels=c,
        panels=len(table),
        panel_table=table,
    )
