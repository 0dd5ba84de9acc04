"""A convolution of small groups of channels, which are contiguous, in blocks or all."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.epilogue import NOTHING, Rectifier, rectifying
from demitasse.backends.kernels.grouped import GroupedSchedule
from demitasse.backends.kernels.image_fields import OutputFields
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address
from demitasse.backends.kernels.language.words import (
    FLOAT,
    INT,
    Vector,
    Word,
    chunk,
    fma,
    permuted,
)
from demitasse.backends.kernels.windows import (
    RegisterTile,
    Row,
    Seen,
    WindowConvolution,
    WindowFields,
    columns_read,
    for_each_tile,
    window_values,
)

AHEAD = 2
"""Prefetch distance, in register tiles."""

SECOND = 2
"""Level of the cache for prefetched pixels."""

COLUMNS = 3
"""Integers of an entry of the table of vectors."""


class GroupedFields(WindowFields):
    """A convolution of groups."""

    y: OutputFields
    channels: Word
    """Channels that a group reads."""
    filters: Address
    """Filters: for each vector and row of taps, channel after channel, tap after tap."""
    filter_bytes: Word
    """Bytes of a vector's filters."""
    offsets: Address
    """One offset for each channel of the output."""
    rectifier: Address
    """Numbers of the epilogue: one slope for each channel, or the limits."""
    vectors: Word
    """Number of vectors of filters."""
    vector_table: Address
    """Columns: bytes from the beginning of an input pixel to the channels read, and of an output
    pixel to the channels written; bytes from the first offset."""
    parts: Word


class Work(NamedTuple):
    """Parameters of a convolution that the kernel's code depends on.

    Attributes:
        rows: Rows of a window.
        shared: Channels of a group, of which several have a vector; 0 for groups of whole vectors.
        fetched: Rows of the input from one row of windows to the next, whose pixels are prefetched;
            0 for none.
    """

    rows: int
    tile: RegisterTile
    shared: int
    fetched: int
    limited: bool

    def __str__(self) -> str:
        fetching = f"_fetching{self.fetched}" if self.fetched else ""
        fetching += "_limited" * self.limited
        return f"{self.rows}x{self.tile}" + (f"of{self.shared}" if self.shared else "") + fetching


@GroupedFields.kernel("grouped")
def _kernel(k: Kernel, f: GroupedFields, work: Work) -> None:
    tile, lines = work.tile, f.images * f.y.rows
    begin, end = chunk(f.parts * lines, *k.thread())
    with k.loop(end, begin) as strip:
        first, last = chunk(f.vectors, strip.i // lines, f.parts)
        row = f.row(strip.i % lines)

        def body(corner: Word, output: Word, seen: Seen) -> None:
            with k.loop(last, first) as vector:
                x, y, own = k.load_words(f.vector_table + vector.i * (COLUMNS * INT), COLUMNS)
                if work.fetched:
                    _fetch(k, work, row, corner + x, output + y)
                filters = f.filters + vector.i * f.filter_bytes
                sums = [k.load(f.offsets + own)] * tile.pixels
                sums = _summed(k, f, work, seen, x, filters, sums)
                then = rectifying(k, f.rectifier, own, limited=work.limited)
                for pixel, total in enumerate(sums):
                    k.store(then(total), output + row.output_bytes * pixel + y)

        for_each_tile(k, row, work.rows, tile, body)


def _fetch(k: Kernel, work: Work, row: Row, corner: Word, output: Word) -> None:
    """Prefetch a cache line of each pixel of a later tile that no earlier row has read."""
    columns = work.tile.pixels * work.tile.stride
    for line in range(work.rows)[-work.fetched :]:
        later = corner + row.down * line * row.row_bytes + row.column_bytes * (columns * AHEAD)
        for column in range(columns):
            k.prefetch(later + row.column_bytes * column, SECOND)
    later = output + row.output_bytes * (work.tile.pixels * AHEAD)
    for pixel in range(work.tile.pixels):
        k.prefetch(later + row.output_bytes * pixel, SECOND)


def _summed(
    k: Kernel, f: GroupedFields, work: Work, seen: Seen, x: Word, filters: Word, sums: list[Vector]
) -> list[Vector]:
    """Return ``sums`` and the products of a tile's windows with a vector's filters.

    The channels that are read lie ``x`` bytes from the beginning of a pixel.
    """
    tile, shared = work.tile, work.shared
    tap_bytes, columns = k.vector_bytes * tile.taps, columns_read(tile)

    def add(totals: list[Vector], taps: Word, spread: Callable[[Word], Vector]) -> None:
        """Write the products of a channel's row of taps."""
        weights = [k.load(taps + k.vector_bytes * tap) for tap in range(tile.taps)]
        for column, products in columns.items():
            number = spread(pixels[column])
            for tap, pixel in products:
                totals[pixel] = fma(number, weights[tap], totals[pixel])

    with k.loop(work.rows, vectors=sums, words=[filters]) as row:
        pixels = {column: seen(row.i, column, x) for column in columns}
        [taps] = row.words
        for channel in range(shared):
            add(row.vectors, taps + tap_bytes * channel, partial(_shared, k, shared, channel))
        row.words = [taps + tap_bytes * shared]
        if not shared:
            with k.loop(f.channels, vectors=row.vectors, words=[taps]) as inner:
                place, [taps] = inner.i * FLOAT, inner.words
                add(inner.vectors, taps, lambda pixel: k.broadcast(pixel + place))
                inner.words = [taps + tap_bytes]
            row.vectors, row.words = inner.vectors, inner.words
    return row.vectors


def _shared(k: Kernel, shared: int, channel: int, pixel: Word) -> Vector:
    """Return a vector with the number of one channel of each group for all of the group's filters.

    Each call loads the vector again, because no register is free.
    """
    order = [lane // shared * shared + channel for lane in range(k.width)]
    return permuted(k.load(k.no_cse(pixel)), order)


class GroupedConvolution(WindowConvolution):
    """A convolution of small groups, with an offset for each channel and an epilogue.

    Attributes:
        filters: The filters of each vector: row after row, channel after channel, tap after tap.
            Shape: (vectors, rows, channels, taps, width).
    """

    def __init__(
        self, parts: GroupedSchedule, x: Images, y: Images, then: Rectifier = NOTHING
    ) -> None:
        width, op = parts.width, parts.op
        rows, taps = op.kernel
        firsts, channels, writes = np.array(parts.vectors), parts.channels, parts.y[1] // op.group
        if not (parts.fits(x) and parts.fits(y)):
            message = (
                f"{x} and {y} were given; give images whose vectors of channels are contiguous"
            )
            raise ValueError(message)
        self.filters = aligned(len(firsts) * rows * channels * taps * width).reshape(
            -1, rows, channels, taps, width
        )
        self._order = np.add.outer(firsts, np.arange(width))
        rectifier = then.numbers(parts.y[1])
        reads = firsts if parts.shared else firsts // writes * channels
        shared, fetched = channels if parts.shared else 0, op.stride[0] if parts.fetches else 0
        values = GroupedFields.values(
            **window_values(op, x, y, aligned(max(width, channels))),
            channels=channels,
            filters=self.filters,
            filter_bytes=self.filters[0].nbytes,
            rectifier=rectifier,
            vectors=len(firsts),
            vector_table=np.stack([x.place(reads), y.place(firsts), firsts], axis=1) * FLOAT,
            parts=parts.parts,
        )
        kernel = _kernel(width, Work(rows, parts.tile, shared, fetched, then.limited))
        super().__init__(parts, kernel, values, rectifier)

    def update(self, weights: np.ndarray, *, backward: bool = False) -> None:
        """Copy new weights in C order; ``backward`` for the gradient of their input."""
        _, rows, channels, taps, _ = self.filters.shape
        shape = self.schedule.y[1], channels, rows, taps
        by_filter = weights[: math.prod(shape)].reshape(shape)
        if backward:
            by_group = by_filter.reshape(-1, channels, channels, rows, taps)
            by_filter = by_group.swapaxes(1, 2)[..., ::-1, ::-1].reshape(shape)
        self.filters[...] = by_filter[self._order].transpose(0, 3, 2, 4, 1)
