"""Images resized by bilinear interpolation, and Interp.

First every row that is needed is resized sideways, into integers of 16 bits; then each new row is
made of two of those. ``demitasse/io/data/images/resize.py`` has the same in numpy.
"""

from operator import index

import numpy as np

from demitasse.backends.kernels.bound import BoundKernel, each_vector, threads_for
from demitasse.backends.kernels.images import ImageFields, Images, OutputFields, need_layout
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Output, Struct
from demitasse.backends.kernels.language.values import (
    FLOAT,
    HALF,
    INT,
    Condition,
    IntVector,
    Vector,
    Word,
    choose,
    high_product,
    pair_sums,
)
from demitasse.backends.kernels.tuning import Tuning

BITS = 11
"""Bits of an interpolation weight; the weights of two neighbours add up to 1 << BITS."""

WIDTH = 8
LANES = 2 * WIDTH
"""Pixels that are written at a time: so much room must lie behind the last row."""

COLOURS = 3
"""Planes of images in colour, for which there is a kernel of its own."""

AT_ONCE = 8
"""Columns that are computed at a time of images with contiguous colours."""


class Columns(Struct):
    """Horizontal resize."""

    pixel_bytes: Word
    """Bytes from a pixel to its right neighbour; 0 in images of one column."""
    count: Word
    """Columns of the result."""
    table: Address
    """Left neighbour of each column: bytes from the beginning of a row."""
    shares: Address
    """Shares of the left and the right neighbour of each column, 16 bits each, four times."""
    fast: Word
    """Columns, a multiple of ``AT_ONCE``, that are computed from loads of 8 bytes with both
    neighbours."""


class Rows(Struct):
    """Vertical resize of the intermediate rows."""

    needed: Word
    """Number of rows of the horizontal resize."""
    table: Address
    """Indices of these rows."""
    count: Word
    """Rows of the result."""
    above: Address
    """Intermediate row above each row of the result."""
    below: Address
    shares: Address
    """Shares of the rows below."""


class Resize(Struct):
    """Planes of an image and of the resized image."""

    image: Address
    plane_bytes: Word
    row_bytes: Word
    columns: Columns
    rows: Rows
    between: Output
    """Memory for the rows that were resized sideways."""
    between_bytes: Word
    """Bytes from one of these rows to the next: whole vectors."""
    result: Output
    """The result in C order."""


def resizer(planes: int) -> int:
    """Return the address of the kernel for one plane or three; it works on one thread."""
    return index(_resize_kernel(WIDTH, planes))


@Resize.kernel("resize")
def _resize_kernel(k: Kernel, f: Resize, planes: int) -> None:
    between = [f.between + f.rows.needed * f.between_bytes * plane for plane in range(planes)]
    with k.loop(f.rows.needed) as row:
        source = f.image + k.load_word(f.rows.table + row.i * INT) * f.row_bytes
        targets = [plane + row.i * f.between_bytes for plane in between]
        if planes == COLOURS:
            _side_by_side(k, f, source, targets)
        _one_by_one(k, f, source, targets)
    for number, plane in enumerate(between):
        _down(k, f, plane, f.result + f.rows.count * f.columns.count * number)


def _side_by_side(k: Kernel, f: Resize, source: Word, targets: list[Word]) -> None:
    """Write the horizontal resize of a row, in units of 1 / 128, as far as 8 bytes can be read."""
    flipped = f.plane_bytes < 0  # the last plane is the first in memory
    source = choose(flipped, source + f.plane_bytes * (COLOURS - 1), source)
    targets = [choose(flipped, *ends) for ends in zip(targets[::-1], targets, strict=True)]
    with k.loop(f.columns.fast, step=AT_ONCE) as column:
        pairs = [_two(k, f, source, column.i + place) for place in range(0, AT_ONCE, 2)]
        sums = pairs[0].concat(pairs[1]).concat(pairs[2].concat(pairs[3]))
        for colour, target in enumerate(targets):
            places = [4 * pixel + colour for pixel in range(AT_ONCE)]
            k.store_lanes(sums.shuffle(places).truncated(16), target + column.i * HALF)


def _two(k: Kernel, f: Resize, source: Word, column: Word) -> IntVector:
    """Return the colours of two columns, each followed by an unused integer."""
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
    """Write the horizontal resize of the rest of a row."""
    with k.loop(f.columns.count, f.columns.fast) as column:
        place = source + k.load_word(f.columns.table + column.i * INT)
        shares = f.columns.shares + column.i * (8 * HALF)
        left_share, right_share = (k.load_unsigned(shares + HALF * n, 16) for n in range(2))
        for number, target in enumerate(targets):
            left = place + f.plane_bytes * number
            right = left + f.columns.pixel_bytes
            total = k.load_unsigned(left, 8) * left_share
            total = total + k.load_unsigned(right, 8) * right_share
            k.store_half(total >> 4, target + column.i * HALF)


def _down(k: Kernel, f: Resize, between: Word, result: Word) -> None:
    """Write the rows of a plane; the next row overwrites elements behind the end of a row."""
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
            k.store_lanes(((total + k.lanes(2, LANES, 16)) >> 2).truncated(8), target + column.i)


FEWEST_EACH = 1 << 13
"""Elements of a thread at least."""


class InterpolationFields(Struct):
    """Images, and per row and column of the result the two neighbours in the source."""

    x: ImageFields
    y: OutputFields
    row_places: Address
    """Bytes from the beginning of an image to the two rows."""
    row_shares: Address
    """Shares of the two rows, floats."""
    column_places: Address
    """Bytes from the beginning of a row to the two columns."""
    column_shares: Address


@InterpolationFields.kernel("interpolation")
def _kernel(k: Kernel, f: InterpolationFields) -> None:
    x, y = f.x, f.y
    with k.parallel_loop(y.images, y.rows) as (image, row):
        plane, target = x.row(image, 0), y.row(image, row)
        above, below = (plane + n for n in k.load_words(f.row_places + row * 2 * INT, 2))
        vertical = _shares(k, f.row_shares, row)
        with k.loop(y.columns) as column:
            columns = k.load_words(f.column_places + column.i * 2 * INT, 2)
            horizontal = _shares(k, f.column_shares, column.i)
            at = target + column.i * y.column_stride * FLOAT
            pixels = [[above + place, below + place] for place in columns]

            def mix(place: Word, some: Condition | None) -> None:
                corners = [[k.load(pixel + place, some) for pixel in side] for side in pixels]
                left, right = (a * vertical[0] + b * vertical[1] for a, b in corners)
                k.store(left * horizontal[0] + right * horizontal[1], at + place, some)

            each_vector(k, y.channels, mix)


def _shares(k: Kernel, table: Word, place: Word) -> list[Vector]:
    return [k.broadcast(table + (place * 2 + n) * FLOAT) for n in range(2)]


class Interpolation(BoundKernel):
    """Each pixel of the result from four of the source, the corners from the corners.

    Source ``x`` and result ``y`` have their channels last. The ``part`` of the source that is
    resized, rows and columns, begins after ``cut`` rows and columns. A call takes x and y.
    """

    def __init__(
        self, x: Images, y: Images, cut: tuple[int, int], part: tuple[int, int], tuning: Tuning
    ) -> None:
        n, c, *out = y.shape
        same = x.shape[:2] == y.shape[:2] and x.channel_stride == y.channel_stride == 1
        need_layout(same, x, y)
        ends = zip(part, out, cut, (x.row_stride, x.column_stride), strict=True)
        rows, columns = (_neighbours(*axis) for axis in ends)
        values = InterpolationFields.values(
            x=ImageFields.of(x),
            y=OutputFields.of(y),
            row_places=rows[0],
            row_shares=rows[1],
            column_places=columns[0],
            column_shares=columns[1],
        )
        threads = threads_for(tuning, n * c * out[0] * out[1], FEWEST_EACH)
        super().__init__("interpolation", _kernel(tuning.width), values, tuning, threads)


def _neighbours(size: int, count: int, before: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the offsets in bytes and the shares of the two neighbours of each output pixel.

    Along an axis, ``count`` pixels are interpolated from ``size`` pixels, which lie ``stride``
    elements apart behind ``before`` pixels. Shapes: (count, 2), (count, 2).
    """
    scaled, step = np.arange(count) * (size - 1), max(1, count - 1)  # in units of 1 / step pixels
    low = scaled // step
    share = (scaled - low * step).astype(np.float32) / np.float32(step)
    pairs = np.stack([low, np.minimum(low + 1, size - 1)], axis=1)
    return (pairs + before) * (stride * FLOAT), np.stack([1 - share, share], axis=1)
