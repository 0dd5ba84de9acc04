"""Products at the transform positions, of filters that are transformed in advance or on the fly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import (
    RUNTIME,
    Address,
    Code,
    OptionalAddress,
    Struct,
    Values,
)
from demitasse.backends.kernels.language.words import (
    FLOAT,
    INT,
    Vector,
    Word,
    choose,
    minimum,
    transposed,
)
from demitasse.backends.kernels.products import Panels, matrix_products
from demitasse.backends.kernels.winograd import PANEL, WinogradSchedule
from demitasse.backends.kernels.winograd.blocks import Block, ScratchLayout
from demitasse.backends.kernels.winograd.matrices import Filtering
from demitasse.backends.kernels.winograd.transforms import times_both

COLUMNS = 6
"""Integers of an entry of the table of panels."""


class ProductFields(Struct):
    """Matrices at each position: (tiles, channels), (channels, filters), (tiles, filters)."""

    tile_stride: Word
    """Elements from one tile of the input to the next."""
    tile_position_stride: Word
    """Elements from one position's tiles of the input to the next's."""
    filters: OptionalAddress
    """Address of the filters."""
    filter_position_stride: Word
    """Elements from one position's filters to the next's."""
    filter_chunk_stride: Word
    """Elements from one chunk's filters to the next's where each has its own; else 0."""
    sums_bytes: Word
    """Bytes from the beginning of a stack to the tiles of the output."""
    sum_stride: Word
    """Elements from one tile of the output to the next."""
    sum_position_stride: Word
    """Elements from one position's tiles of the output to the next's."""
    channels: Word
    """Channels of a group."""
    panels: Word
    """Number of panels of all groups' filters."""
    panel_table: OptionalAddress
    """Address of the panels' table. Columns: addresses of product and remainders; elements
    from the beginning of a position's tiles, filters and sums to the panel's; elements of a row
    of the panel's filters."""


class Panel(NamedTuple):
    """Some filters of a group at a position, in the kernel.

    Attributes:
        product: Address of the product.
        remainders: Address of the table of the remainders' kernels.
        tiles: Address of its group's channels of the first tile.
        filters: Address of the filters.
        sums: Address of their sums of the first tile.
        row_bytes: Bytes from one channel's filters to the next's.
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
    products: Panels | None,
    counts: Iterable[int],
    sums_bytes: int,
    filter_chunk_stride: int = 0,
) -> Values:
    """Return the values of the fields.

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
        tile_position_stride=tiling.tile_position_stride,
        filters=None if products is None else RUNTIME,
        filter_position_stride=tiling.filter_position_stride,
        filter_chunk_stride=filter_chunk_stride,
        sums_bytes=sums_bytes,
        sum_stride=tiling.sum_stride,
        sum_position_stride=tiling.sum_position_stride,
        channels=c,
        panels=len(table),
        panel_table=table if len(table) else None,
    )


class OnTheFlyFields(Struct):
    """Filters in C order, and scratch memory of their on-the-fly transform."""

    weights: Address
    """Address of the filters."""
    factors: Address
    """Address of a factor for each filter, applied before the transform."""
    groups: Word
    """Number of groups."""
    panels: Word
    """Number of panels of a group's filters, all of the same number of vectors."""
    channels_at_once: Word
    """Channels of a panel that are transformed at a time."""
    positions_bytes: Word
    """Bytes from the beginning of a thread's scratch, with the filters to transform, to the
    transformed values."""
    position_bytes: Word
    """Bytes from one position's values to the next's."""
    first: Code
    """Address of the product that begins sums."""
    first_remainders: Address
    """Address of the table of the remainders' kernels."""
    next: Code
    """Address of the product that adds to existing sums."""
    next_remainders: Address
    """Address of the table of the remainders' kernels."""


def multiply_on_the_fly(
    k: Kernel, f: ProductFields, u: OnTheFlyFields, block: Block, of: Filtering
) -> None:
    """Write the products of a block's tiles; threads divide the panels of each group.

    Args:
        k: The kernel.
        f: Where tiles and sums are.
        u: Where the filters are.
        block: The block.
        of: The matrices of the transforms.
    """
    area, positions = of.taps, of.positions
    with k.loop(u.groups) as group:
        channel, filter_ = group.i * f.channels, group.i * u.panels * (PANEL * k.width)
        begin, end = block.bounds(u.panels)
        with (
            k.loop(end, begin) as panel,
            k.loop(f.channels, 0, u.channels_at_once) as part,
        ):
            channels = minimum(u.channels_at_once, f.channels - part.i)
            first = filter_ + panel.i * (PANEL * k.width)
            values = block.scratch + u.positions_bytes
            with k.loop(PANEL) as vector:
                number = first + vector.i * k.width
                taps = u.weights + (number * f.channels + part.i) * (area * FLOAT)
                own = block.scratch
                lines = channels * area // k.width
                factors = u.factors + number * FLOAT
                _transpose(k, taps, f.channels * (area * FLOAT), lines, factors, own)
                with k.loop(channels) as one:
                    target = values + (one.i * PANEL + vector.i) * k.vector_bytes
                    _to_positions(
                        k, of, own + one.i * (area * k.vector_bytes), target, u.position_bytes
                    )
            product = choose(part.i > 0, u.next, u.first)
            remainders = choose(part.i > 0, u.next_remainders, u.first_remainders)
            with k.loop(positions) as position:
                tiles = (
                    block.stack + (position.i * f.tile_position_stride + channel + part.i) * FLOAT
                )
                sums = block.stack + f.sums_bytes + position.i * f.sum_position_stride * FLOAT
                k.call_at(
                    product, tiles, f.tile_stride * FLOAT, FLOAT,
                    values + position.i * u.position_bytes, PANEL * k.vector_bytes,
                    sums + first * FLOAT, f.sum_stride * FLOAT, block.tiles, channels, 0,
                    remainders,
                )  # fmt: skip


def _to_positions(k: Kernel, of: Filtering, taps: Word, target: Word, position_bytes: Word) -> None:
    """Write the transform of a vector of filters of one channel."""
    down, across = of

    def tap(row: int, column: int) -> Vector:
        return k.load(taps + (row * across.taps + column) * k.vector_bytes)

    def put(row: int, column: int, value: Vector) -> None:
        k.store(value, target + position_bytes * (row * across.side + column))

    times_both(k, (down.filter, across.filter), tap, put)


def _transpose(
    k: Kernel, taps: Word, row_bytes: Word, count: Word, factors: Word, target: Word
) -> None:
    """Write the transpose of rows of vectors, times a factor for each row.

    Args:
        k: The kernel.
        taps: Address of the first row, of as many as a vector has elements.
        row_bytes: Bytes from one row to the next.
        count: Vectors of a row.
        factors: Address of a factor for each row.
        target: Address of the contiguous results.
    """
    factor = k.load(factors)
    with k.loop(count) as line:
        first = taps + line.i * k.vector_bytes
        rows = [first + row_bytes * row for row in range(k.width)]
        for place, vector in enumerate(transposed([k.load(row) for row in rows])):
            k.store(vector * factor, target + (line.i * k.width + place) * k.vector_bytes)


def on_the_fly_values(
    tiling: WinogradSchedule, scratch: ScratchLayout, factors: np.ndarray
) -> Values:
    """Return the values of the fields.

    Args:
        tiling: The convolution.
        scratch: Its scratch memory.
        factors: One for each filter.
    """
    first, following = (
        matrix_products(tiling.width, packed=True, accumulate=accumulate)(PANEL, tiling.block_tiles)
        for accumulate in (False, True)
    )
    part = tiling.part
    return OnTheFlyFields.values(
        weights=RUNTIME,
        factors=factors,
        groups=tiling.groups,
        panels=tiling.filters // tiling.groups // (PANEL * tiling.width),
        channels_at_once=part.channels,
        positions_bytes=scratch.positions_bytes,
        position_bytes=part.position_stride * FLOAT,
        first=first.address,
        first_remainders=first.remainders,
        next=following.address,
        next_remainders=following.remainders,
    )
