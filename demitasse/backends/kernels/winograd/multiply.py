"""The products at the points: tiles, filters and sums, of which two give the third."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import EACH_CALL, OptionalAddress, Struct, Values
from demitasse.backends.kernels.language.words import FLOAT, INT, Word
from demitasse.backends.kernels.products.registers import Panels
from demitasse.backends.kernels.winograd.strips import Block
from demitasse.backends.kernels.winograd.tiling import Tiling

__all__ = ["Panel", "ProductFields", "each_panel", "product_values"]

COLUMNS = 6
"""Integers of an entry of the table of panels."""


class ProductFields(Struct):
    """Matrices at the points: (tiles, channels), (channels, filters), (tiles, filters)."""

    tile_stride: Word
    """Elements from one tile of the input to the next."""
    tile_point_stride: Word
    """Elements from one point's tiles of the input to the next's."""
    filters: OptionalAddress
    """Address of the filters."""
    filter_point_stride: Word
    """Elements from one point's filters to the next's."""
    filter_chunk_stride: Word
    """Elements from one chunk's filters to the next's where each has its own; else 0."""
    sums_bytes: Word
    """Bytes from the beginning of a stack to the tiles of the output."""
    sum_stride: Word
    """Elements from one tile of the output to the next."""
    sum_point_stride: Word
    """Elements from one point's tiles of the output to the next's."""
    channels: Word
    """Channels of a group."""
    panels: Word
    """Number of panels of all groups' filters."""
    panel_table: OptionalAddress
    """Address of their table: for each, the address of its product and of those for rests; elements
    from where a point's tiles, filters and sums begin to its own; elements of a row of its
    filters."""


class Panel(NamedTuple):
    """Some filters of a group at a point, in the kernel.

    Attributes:
        product: Address of the product.
        rests: Address of the table of those for rests.
        tiles: Address of its group's channels of the first tile.
        filters: Address of the filters.
        sums: Address of their sums of the first tile.
        row_bytes: Bytes from one channel's filters to the next's.
    """

    product: Word
    rests: Word
    tiles: Word
    filters: Word
    sums: Word
    row_bytes: Word


@contextmanager
def each_panel(k: Kernel, f: ProductFields, block: Block, points: int) -> Iterator[Panel]:
    """Write what is done for each panel at each of this thread's points."""
    filters = f.filters + block.chunk * f.filter_chunk_stride * FLOAT
    begin, end = block.bounds(k.word(points))
    with k.loop(end, begin) as point, k.loop(f.panels) as panel:
        entry = f.panel_table + panel.i * (COLUMNS * INT)
        product, rests, tile, filter_, total, row = k.load_words(entry, COLUMNS)
        yield Panel(
            product,
            rests,
            block.stack + point.i * f.tile_point_stride * FLOAT + tile * FLOAT,
            filters + point.i * f.filter_point_stride * FLOAT + filter_ * FLOAT,
            block.stack + f.sums_bytes + point.i * f.sum_point_stride * FLOAT + total * FLOAT,
            row * FLOAT,
        )


def product_values(
    tiling: Tiling,
    products: Panels | None,
    counts: Iterable[int],
    sums_bytes: int,
    filter_chunk_stride: int = 0,
) -> Values:
    """Return the values of those fields.

    Args:
        tiling: The convolution.
        products: The kernels, by the vectors of a panel; None where others find the filters.
        counts: Numbers of rows that they are run for.
        sums_bytes: From the beginning of a stack to the tiles of the output.
        filter_chunk_stride: Elements from one chunk's filters to the next's.
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
        if products is not None
    ]
    table = np.array(rows, np.int64)
    return ProductFields.values(
        tile_stride=tiling.tile_stride,
        tile_point_stride=tiling.tile_point_stride,
        filters=None if products is None else EACH_CALL,
        filter_point_stride=tiling.filter_point_stride,
        filter_chunk_stride=filter_chunk_stride,
        sums_bytes=sums_bytes,
        sum_stride=tiling.sum_stride,
        sum_point_stride=tiling.sum_point_stride,
        channels=c,
        panels=len(table),
        panel_table=table if len(table) else None,
    )
