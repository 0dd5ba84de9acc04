"""Products for windows of stride 2, with filters transformed on the fly from C order.

A thread transforms a few filters of a few channels, phase by phase, and multiplies the tiles of
the same phase with them. In the output the phases are summed; in the
gradient of the input each is a sum of its own, of flipped filters.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import (
    RUNTIME,
    Address,
    Code,
    Struct,
    Values,
)
from demitasse.backends.kernels.language.words import (
    FLOAT,
    Vector,
    Word,
    choose,
    chunk,
    minimum,
    transposed,
)
from demitasse.backends.kernels.products import matrix_products
from demitasse.backends.kernels.winograd import STEP, WinogradSchedule
from demitasse.backends.kernels.winograd.blocks import Block, ScratchLayout
from demitasse.backends.kernels.winograd.matrices import Matrices
from demitasse.backends.kernels.winograd.products import ProductFields
from demitasse.backends.kernels.winograd.transforms import times_both

PHASES = STEP**2


class Strided(NamedTuple):
    """Parameters known when the kernel is generated.

    Attributes:
        panel: Vectors of a panel of filters.
        flipped: Whether filters are flipped.
        window: Their rows and columns.
    """

    panel: int
    flipped: bool
    window: int

    @property
    def name(self) -> str:
        """A part of the kernel's name."""
        return f"_strided{self.window}of{self.panel}{'_flipped' if self.flipped else ''}"


def strided_of(tiling: WinogradSchedule) -> Strided | None:
    """Return what a kernel is made for; None for stride 1."""
    if tiling.stride == 1:
        return None
    return Strided(tiling.panel, tiling.computes == "input", tiling.window)


class PartFields(Struct):
    """Some channels of a panel of filters in C order, or of their gradient."""

    panels: Word
    """Number of panels, all of the same number of vectors."""
    shares: Word
    """Into how many shares each is divided where there are more threads: shares of the tiles, or in
    the gradient of the channels."""
    channels: Word
    """Channels of a phase."""
    channels_at_once: Word
    """Filters transformed at a time."""
    filter_stride: Word
    """Elements of the parameter from one filter to the next."""
    channel_stride: Word
    """Elements of it from one channel to the next."""
    positions_bytes: Word
    """Bytes from the beginning of a thread's scratch, with the filters to transform, to the
    transformed values."""
    position_bytes: Word
    """Bytes from one position's values to the next's."""


class StridedFields(Struct):
    """The filters, and products with them."""

    weights: Address
    """Address of the parameter."""
    part: PartFields
    """Division into parts."""
    joined: Word
    """True if the phases are summed: 1 or 0."""
    sum_phase_stride: Word
    """Elements from one phase's sums to the next's; 0 where they are summed."""
    first: Code
    """Address of the product that begins sums."""
    first_remainders: Address
    """Address of the table of the remainders' kernels."""
    next: Code
    """Address of the product that adds to existing sums."""
    next_remainders: Address
    """Address of the table of the remainders' kernels."""


class PartOfPanel(NamedTuple):
    """Some channels of a panel, in the kernel.

    Attributes:
        share: Number of the share.
        filter: The first filter.
        channel: The first channel.
        channels: How many there are.
        taps: Address of their taps in scratch: vector by vector, channel by channel.
        values: Address of their values at the positions.
        weights: Elements of the parameter before them.
    """

    share: Word
    filter: Word
    channel: Word
    channels: Word
    taps: Word
    values: Word
    weights: Word


@contextmanager
def each_part(
    k: Kernel, f: PartFields, block: Block, panel: int, *, apart: bool
) -> Iterator[PartOfPanel]:
    """Write what is done to each part of the panels, which threads divide.

    Args:
        k: The kernel.
        f: Its fields.
        block: The block that it works on.
        panel: Vectors of a panel.
        apart: Whether those who share a panel divide its channels.
    """
    begin, end = block.bounds(f.panels * f.shares)
    with k.loop(end, begin) as item:
        first, share = item.i % f.panels * (panel * k.width), item.i // f.panels
        start, stop = chunk(f.channels, share, f.shares) if apart else (k.word(0), f.channels)
        with k.loop(stop, start, f.channels_at_once) as part:
            yield PartOfPanel(
                share=share,
                filter=first,
                channel=part.i,
                channels=minimum(f.channels_at_once, stop - part.i),
                taps=block.scratch,
                values=block.scratch + f.positions_bytes,
                weights=first * f.filter_stride + part.i * f.channel_stride,
            )


def multiply_strided(
    k: Kernel, f: ProductFields, s: StridedFields, block: Block, of: Matrices, strided: Strided
) -> None:
    """Write the products of a block's tiles.

    Args:
        k: The kernel.
        f: Where tiles and sums are.
        s: Where the filters are.
        block: The block.
        of: The matrices of the transforms.
        strided: What is known of the filters.
    """
    panel, area, vector_bytes = strided.panel, (STEP * of.taps) ** 2, k.vector_bytes
    matrix = np.ascontiguousarray(of.filter[:, ::-1]) if strided.flipped else of.filter
    with each_part(k, s.part, block, panel, apart=False) as part:
        weights = s.weights + part.weights * FLOAT
        with k.loop(panel) as vector, k.loop(part.channels) as channel:
            target = part.taps + (vector.i * part.channels + channel.i) * (area * vector_bytes)
            first = weights + channel.i * s.part.channel_stride * FLOAT
            _transpose(k, rows_of_taps(k, first, vector.i, s.part), strided.window, of, target)
        begin, end = chunk(block.tiles, part.share, s.part.shares)
        with k.loop(PHASES) as phase:
            own = part.taps + phase_taps(phase.i, of) * vector_bytes
            with k.loop(panel) as vector, k.loop(part.channels) as channel:
                taps = own + (vector.i * part.channels + channel.i) * (area * vector_bytes)
                target = part.values + (channel.i * panel + vector.i) * vector_bytes
                _to_positions(k, of, matrix, taps, target, s.part.position_bytes)
            accumulate = part.channel + phase.i * s.joined > 0
            product = choose(accumulate, s.next, s.first)
            remainders = choose(accumulate, s.next_remainders, s.first_remainders)
            tiles = begin * f.tile_stride + phase.i * s.part.channels + part.channel
            sums = begin * f.sum_stride + phase.i * s.sum_phase_stride + part.filter
            with k.loop(of.side**2) as position:
                k.call_at(
                    product, block.stack + (position.i * f.tile_position_stride + tiles) * FLOAT,
                    f.tile_stride * FLOAT, FLOAT, part.values + position.i * s.part.position_bytes,
                    panel * vector_bytes,
                    block.stack + f.sums_bytes
                    + (position.i * f.sum_position_stride + sums) * FLOAT,
                    f.sum_stride * FLOAT, end - begin, part.channels, 0, remainders,
                )  # fmt: skip


def phase_taps(phase: Word, of: Matrices) -> Word:
    """Return how many taps of a window are before the first of a phase."""
    return phase // STEP * (STEP * of.taps) + phase % STEP


def rows_of_taps(k: Kernel, first: Word, vector: Word, f: PartFields) -> list[Word]:
    """Return the address of the taps of each filter of a vector of a panel.

    Args:
        k: The kernel.
        first: Address of those of the panel's first filter.
        vector: Number of the vector.
        f: The fields of parts.
    """
    stride = f.filter_stride * FLOAT
    return [first + (vector * k.width + row) * stride for row in range(k.width)]


def _transpose(k: Kernel, rows: list[Word], window: int, of: Matrices, target: Word) -> None:
    """Write rows of taps, one row for each filter, as one vector of filters for each tap.

    Taps that the filters lack, beyond their last row and column, are zeros.
    """
    places = tap_places(window, of)
    for first in range(0, len(places), k.width):
        some = k.lane_mask(k.word(len(places) - first))
        vectors = [k.masked_load(row + first * FLOAT, some) for row in rows]
        for place, vector in zip(places[first:], transposed(vectors), strict=False):
            k.store(vector, target + place * k.vector_bytes)
    for place in sorted({*range((STEP * of.taps) ** 2)} - {*places}):
        k.store(k.constant(0.0), target + place * k.vector_bytes)


def tap_places(window: int, of: Matrices) -> list[int]:
    """Return where the taps of filters of so many rows and columns are among all phases' taps."""
    return [row * STEP * of.taps + column for row in range(window) for column in range(window)]


def _to_positions(
    k: Kernel, of: Matrices, matrix: np.ndarray, taps: Word, target: Word, position_bytes: Word
) -> None:
    """Write a vector of filters of a phase of one channel at all positions."""
    wide = STEP * of.taps

    def tap(row: int, column: int) -> Vector:
        return k.load(taps + STEP * (row * wide + column) * k.vector_bytes)

    def put(row: int, column: int, value: Vector) -> None:
        k.store(value, target + position_bytes * (row * of.side + column))

    times_both(k, (matrix, matrix), tap, put)


def part_values(tiling: WinogradSchedule, scratch: ScratchLayout) -> Values:
    """Return the values of the fields of parts.

    Args:
        tiling: The convolution.
        scratch: Its scratch memory.
    """
    filters, channels = tiling.filters // tiling.groups, tiling.part_channels
    area, part = tiling.window**2, tiling.part
    flipped = tiling.computes == "input"
    return PartFields.values(
        panels=filters // (tiling.panel * tiling.width),
        shares=_shares(tiling),
        channels=channels,
        channels_at_once=part.channels,
        filter_stride=area if flipped else channels * area,
        channel_stride=filters * area if flipped else area,
        positions_bytes=scratch.positions_bytes,
        position_bytes=part.position_stride * FLOAT,
    )


def _shares(tiling: WinogradSchedule) -> int:
    """Return into how many shares each panel is divided, so that there is one for each thread."""
    panels = tiling.filters // tiling.groups // (tiling.panel * tiling.width)
    return -(-tiling.threads // panels)


def strided_values(tiling: WinogradSchedule, scratch: ScratchLayout) -> Values:
    """Return the values of the fields of products.

    Args:
        tiling: The convolution.
        scratch: Its scratch memory.
    """
    shares = _shares(tiling)
    counts = {
        tiles * (share + 1) // shares - tiles * share // shares
        for tiles in tiling.block_tiles
        for share in range(shares)
    } - {0}
    first, following = (
        matrix_products(tiling.width, packed=True, accumulate=accumulate)(tiling.panel, counts)
        for accumulate in (False, True)
    )
    joined = tiling.computes == "output"
    return StridedFields.values(
        weights=RUNTIME,
        part=part_values(tiling, scratch),
        joined=int(joined),
        sum_phase_stride=0 if joined else tiling.filters // tiling.groups,
        first=first.address,
        first_remainders=first.remainders,
        next=following.address,
        next_remainders=following.remainders,
    )
