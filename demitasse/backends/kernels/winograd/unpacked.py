"""The products at the points, of filters that a parameter holds in C order.

Values of filters at the points are four times as many numbers as the filters. Where that is more
than the caches hold, they would come from memory in each pass. Here a thread takes a few filters of
a few channels to the points, multiplies the tiles with them, and goes on: it reads the parameter
itself, nothing is kept, and the sums are those of :mod:`multiply`, to the bit.
"""

from __future__ import annotations

import numpy as np

from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import EACH_CALL, Address, Code, Struct, Values
from demitasse.backends.kernels.language.words import FLOAT, Vector, Word, choose, minimum, turned
from demitasse.backends.kernels.products.matrix import matrix_products
from demitasse.backends.kernels.winograd.matrices import Filtering
from demitasse.backends.kernels.winograd.multiply import ProductFields
from demitasse.backends.kernels.winograd.scratch import Scratch
from demitasse.backends.kernels.winograd.strips import Block
from demitasse.backends.kernels.winograd.tiling import PANEL, Tiling
from demitasse.backends.kernels.winograd.transforms import times_both

__all__ = ["UnpackedFields", "multiply_unpacked", "unpacked_values"]


class UnpackedFields(Struct):
    """Filters in C order, and where a thread takes some of them to the points."""

    weights: Address
    """Address of the filters."""
    factors: Address
    """Address of a factor for each filter, with which it is multiplied first."""
    groups: Word
    """Number of groups."""
    panels: Word
    """Number of panels of a group's filters, all of the same number of vectors."""
    channels_at_once: Word
    """Channels of a panel that are transformed at a time."""
    points_bytes: Word
    """Bytes from the beginning of a thread's scratch, where filters are that it takes to the
    points, to their values there."""
    point_bytes: Word
    """Bytes from one point's values to the next's."""
    first: Code
    """Address of the product that begins sums."""
    first_rests: Address
    """Address of the table of those for its rests."""
    next: Code
    """Address of the product that goes on with them."""
    next_rests: Address
    """Address of the table of those for its rests."""


def multiply_unpacked(
    k: Kernel, f: ProductFields, u: UnpackedFields, block: Block, of: Filtering
) -> None:
    """Write the products of a block's tiles; threads divide the panels of each group.

    Args:
        k: The kernel.
        f: Where tiles and sums are.
        u: Where the filters are.
        block: The block.
        of: The matrices of the transforms.
    """
    area, points = of.taps, of.points
    with k.loop(u.groups) as group:
        channel, filter_ = group.i * f.channels, group.i * u.panels * (PANEL * k.width)
        begin, end = block.bounds(u.panels)
        with (
            k.loop(end, begin) as panel,
            k.loop(f.channels, 0, u.channels_at_once) as part,
        ):
            channels = minimum(u.channels_at_once, f.channels - part.i)
            first = filter_ + panel.i * (PANEL * k.width)
            values = block.scratch + u.points_bytes
            with k.loop(PANEL) as vector:
                number = first + vector.i * k.width
                taps = u.weights + (number * f.channels + part.i) * (area * FLOAT)
                own = block.scratch
                turned = channels * area // k.width
                _turn(k, taps, f.channels * (area * FLOAT), turned, u.factors + number * FLOAT, own)
                with k.loop(channels) as one:
                    target = values + (one.i * PANEL + vector.i) * k.vector_bytes
                    _to_points(k, of, own + one.i * (area * k.vector_bytes), target, u.point_bytes)
            product = choose(part.i > 0, u.next, u.first)
            rests = choose(part.i > 0, u.next_rests, u.first_rests)
            with k.loop(points) as point:
                tiles = block.stack + (point.i * f.tile_point_stride + channel + part.i) * FLOAT
                sums = block.stack + f.sums_bytes + point.i * f.sum_point_stride * FLOAT
                k.call_at(
                    product, tiles, f.tile_stride * FLOAT, FLOAT,
                    values + point.i * u.point_bytes, PANEL * k.vector_bytes,
                    sums + first * FLOAT, f.sum_stride * FLOAT, block.tiles, channels, 0, rests,
                )  # fmt: skip


def _to_points(k: Kernel, of: Filtering, taps: Word, target: Word, point_bytes: Word) -> None:
    """Write a vector of filters of one channel at all points."""
    down, across = of

    def tap(row: int, column: int) -> Vector:
        return k.load(taps + (row * across.taps + column) * k.vector_bytes)

    def put(row: int, column: int, value: Vector) -> None:
        k.store(value, target + point_bytes * (row * across.side + column))

    times_both(k, (down.filter, across.filter), tap, put)


def _turn(k: Kernel, taps: Word, row_bytes: Word, count: Word, factors: Word, target: Word) -> None:
    """Write what lies in rows of vectors as vectors of one element of each row, times factors.

    Args:
        k: The kernel.
        taps: Address of the first row, of as many as a vector has elements.
        row_bytes: From one row to the next.
        count: Vectors of a row.
        factors: Address of a factor for each row.
        target: Where they go, one behind the other.
    """
    factor = k.load(factors)
    with k.loop(count) as line:
        first = taps + line.i * k.vector_bytes
        rows = [first + row_bytes * row for row in range(k.width)]
        for place, vector in enumerate(turned([k.load(row) for row in rows])):
            k.store(vector * factor, target + (line.i * k.width + place) * k.vector_bytes)


def unpacked_values(tiling: Tiling, scratch: Scratch, factors: np.ndarray) -> Values:
    """Return the values of those fields.

    Args:
        tiling: The convolution.
        scratch: Its scratch memory.
        factors: One for each filter.
    """
    first, following = (
        matrix_products(tiling.width, packed=True, begun=begun)(PANEL, tiling.block_tiles)
        for begun in (False, True)
    )
    part = tiling.part
    return UnpackedFields.values(
        weights=EACH_CALL,
        factors=factors,
        groups=tiling.groups,
        panels=tiling.filters // tiling.groups // (PANEL * tiling.width),
        channels_at_once=part.channels,
        points_bytes=scratch.points_bytes,
        point_bytes=part.point_stride * FLOAT,
        first=first.address,
        first_rests=first.rests,
        next=following.address,
        next_rests=following.rests,
    )
