"""Resize images of bytes: bilinear, in 11-bit fixed point.

First every row that is needed is resized sideways, into integers of 16 bits; then each new row is
made of two of those. ``demitasse/io/data/images/resize.py`` has the same in numpy.
"""

from __future__ import annotations

from typing import Any

from demitasse.backends.kernels.language.compiler import compiled
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Output, Struct
from demitasse.backends.kernels.language.words import (
    HALF,
    INT,
    IntVector,
    Word,
    choose,
    high_product,
    pair_sums,
)

__all__ = ["AT_ONCE", "COLOURS", "LANES", "Columns", "Resize", "Rows", "resizer"]

BITS = 11
"""Bits of an interpolation weight; the weights of two neighbours add up to 1 << BITS."""

WIDTH = 8
LANES = 2 * WIDTH
"""Pixels that are written at a time: so much room must lie behind the last row."""

COLOURS = 3
"""Planes of images in colour, for which there is a kernel of its own."""

AT_ONCE = 8
"""Columns that are made at a time of images whose colours lie side by side."""


class Columns(Struct):
    """Horizontal resize."""

    pixel_bytes: Word
    """Bytes from a pixel to its right neighbour; 0 in images of one column."""
    count: Word
    """Columns of the result."""
    table: Address
    """Address of where each one's left neighbour is: bytes from the beginning of its row."""
    shares: Address
    """Address of the shares of their left and right neighbours, 16 bits each, four times."""
    fast: Word
    """Columns, a multiple of ``AT_ONCE``, that are computed from loads of 8 bytes with both
    neighbours."""


class Rows(Struct):
    """Vertical resize of the intermediate rows."""

    needed: Word
    """Number of rows of the horizontal resize."""
    table: Address
    """Address of their numbers."""
    count: Word
    """Rows of the result."""
    above: Address
    """Address of which of the needed rows lies above each."""
    below: Address
    """Address of which lies below."""
    shares: Address
    """Address of the shares of those below."""


class Resize(Struct):
    """Planes of an image and of the resized image."""

    image: Address
    """Address of the first pixel."""
    plane_bytes: Word
    """Bytes from one plane to the next."""
    row_bytes: Word
    """Bytes from one row to the next."""
    columns: Columns
    """Horizontal resize of its rows."""
    rows: Rows
    """Vertical resize of the intermediate rows."""
    between: Output
    """Address of memory for the rows that were resized sideways."""
    between_bytes: Word
    """Bytes from one of those to the next: whole vectors."""
    result: Output
    """Address of the result, whose planes and rows lie one behind the other."""


def resizer(planes: int) -> int:
    """Return the address of the kernel for one plane or three; it works on one thread."""
    name = f"resize{planes}"
    return compiled(name, lambda module: _write(module, name, planes), name)[name]


def _write(module: Any, name: str, planes: int) -> None:
    k = Kernel(module, name, 1, WIDTH, exported=True)
    f = Resize.read(k)
    between = [f.between + f.rows.needed * f.between_bytes * plane for plane in range(planes)]
    with k.loop(f.rows.needed) as row:
        source = f.image + k.load_word(f.rows.table + row.i * INT) * f.row_bytes
        targets = [plane + row.i * f.between_bytes for plane in between]
        if planes == COLOURS:
            _side_by_side(k, f, source, targets)
        _one_by_one(k, f, source, targets)
    for number, plane in enumerate(between):
        _down(k, f, plane, f.result + f.rows.count * f.columns.count * number)
    k.done()


def _side_by_side(k: Kernel, f: Resize, source: Word, targets: list[Word]) -> None:
    """Write what resizes a row sideways, in units of 1 / 128, as far as 8 bytes can be read."""
    flipped = f.plane_bytes < 0  # the last plane is the first in memory
    source = choose(flipped, source + f.plane_bytes * (COLOURS - 1), source)
    targets = [choose(flipped, *ends) for ends in zip(targets[::-1], targets, strict=True)]
    with k.loop(f.columns.fast, step=AT_ONCE) as column:
        pairs = [_two(k, f, source, column.i + place) for place in range(0, AT_ONCE, 2)]
        sums = pairs[0].concat(pairs[1]).concat(pairs[2].concat(pairs[3]))
        for colour, target in enumerate(targets):
            places = [4 * pixel + colour for pixel in range(AT_ONCE)]
            k.store_lanes(sums.shuffle(places).cut(16), target + column.i * HALF)


def _two(k: Kernel, f: Resize, source: Word, column: Word) -> IntVector:
    """Return the colours of two columns, each followed by what is of no use."""
    places = [k.load_word(f.columns.table + (column + one) * INT) for one in range(2)]
    first, second = (k.load_lanes(source + place, 8, 8) for place in places)
    left_and_right = [0, 3, 1, 4, 2, 5, 6, 7]
    order: list[int | None] = []
    for pixel in range(2):
        for place in left_and_right:
            order += [8 * pixel + place, None]  # of 8 bits 16
    neighbours = first.concat(second).shuffle(order).of_bits(16)
    shares = k.load_lanes(f.columns.shares + column * (8 * HALF), 16, 16)
    return pair_sums(neighbours, shares) >> 4


def _one_by_one(k: Kernel, f: Resize, source: Word, targets: list[Word]) -> None:
    """Write what resizes the rest of a row sideways."""
    with k.loop(f.columns.count, f.columns.fast) as column:
        place = source + k.load_word(f.columns.table + column.i * INT)
        shares = f.columns.shares + column.i * (8 * HALF)
        left_share, right_share = k.load_half(shares), k.load_half(shares + HALF)
        for number, target in enumerate(targets):
            left = place + f.plane_bytes * number
            right = left + f.columns.pixel_bytes
            total = k.load_byte(left) * left_share + k.load_byte(right) * right_share
            k.store_half(total >> 4, target + column.i * HALF)


def _down(k: Kernel, f: Resize, between: Word, result: Word) -> None:
    """Write what makes the rows of a plane.

    What a vector writes behind the end of a row is overwritten by the next one.
    """
    with k.loop(f.rows.count) as line:
        above = between + k.load_word(f.rows.above + line.i * INT) * f.between_bytes
        below = between + k.load_word(f.rows.below + line.i * INT) * f.between_bytes
        share = k.load_word(f.rows.shares + line.i * INT)
        upper, lower = k.lanes((1 << BITS) - share, LANES, 16), k.lanes(share, LANES, 16)
        target = result + line.i * f.columns.count
        with k.loop(f.columns.count, step=LANES) as column:
            place = column.i * HALF
            total = high_product(k.load_lanes(above + place, LANES, 16), upper)
            total = total + high_product(k.load_lanes(below + place, LANES, 16), lower)
            k.store_lanes(((total + k.lanes(2, LANES, 16)) >> 2).cut(8), target + column.i)
