"""Rows of windows over images, with zeros in place of pixels outside."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.image_fields import ImageFields, OutputFields
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Arguments, Struct, Values
from demitasse.backends.kernels.language.values import (
    FLOAT,
    INT,
    Float,
    Vector,
    Word,
    choose,
    minimum,
)
from demitasse.backends.kernels.products import tile_rows
from demitasse.backends.kernels.tuning import ConvSchedule
from demitasse.backends.step import decline_if

MOST_SEEN = 320
"""Greatest number of a tile's taps: kernels are unrolled over their addresses."""


class Row(NamedTuple):
    """An output row and its input rows, in the kernel.

    Attributes:
        image: Address of the image's first pixel; ``height`` to ``column_bytes`` are the image's.
        top: Input row of the first row of taps, possibly outside.
        down: Rows from one row of taps to the next.
        left: Columns that the first window reaches to the left of the image.
        zeros: Address of zeros in place of a pixel outside.
        output: Address of the first output; ``output_bytes`` are the bytes to the next output.
        columns: Number of outputs.
    """

    image: Word
    top: Word
    down: Word
    left: Word
    height: Word
    width: Word
    row_bytes: Word
    column_bytes: Word
    zeros: Word
    output: Word
    output_bytes: Word
    columns: Word


class WindowFields(Struct):
    """A convolution's windows, and the images that they go over."""

    x: ImageFields
    y: ImageFields
    step_down: Word
    """Rows of the input from one window to the window below."""
    down: Word
    """Rows of the input from one row of taps to the next."""
    top: Word
    """Rows that the first window begins above an image."""
    left: Word
    """Columns that the first window begins before an image."""
    zeros: Address
    """Zeros in place of a pixel outside, and before them."""
    zeros_bytes: Word
    """Bytes from the first zero to the pixel."""
    images: Word

    def row(self, place: Word) -> Row:
        """Return a row of outputs, counted through all images."""
        image, line = place // self.y.rows, place % self.y.rows
        output = image * self.y.image_stride + line * self.y.row_stride
        return Row(
            image=self.x.at + image * self.x.image_stride * FLOAT,
            top=line * self.step_down - self.top,
            down=self.down,
            left=self.left,
            height=self.x.rows,
            width=self.x.columns,
            row_bytes=self.x.row_stride * FLOAT,
            column_bytes=self.x.column_stride * FLOAT,
            zeros=self.zeros + self.zeros_bytes,
            output=self.y.at + output * FLOAT,
            output_bytes=self.y.column_stride * FLOAT,
            columns=self.y.columns,
        )


def window_values(
    op: ops.Conv,
    x: Images,
    y: Images,
    zeros: np.ndarray,
    *,
    before: int = 0,
    gradient: bool = False,
) -> dict[str, Any]:
    """Return the values of a convolution's windows.

    A number of ``zeros`` lie ``before`` the pixel of zeros, for vectors that begin early. With
    ``gradient``, ``y`` is read instead of written.
    """
    return {
        "x": ImageFields.of(x),
        "y": (ImageFields if gradient else OutputFields).of(y),
        "step_down": op.stride[0],
        "down": op.dilation[0],
        "top": op.pad[0],
        "left": op.pad[1],
        "zeros": zeros,
        "zeros_bytes": before * FLOAT,
        "images": x.shape[0],
    }


class RegisterTile(NamedTuple):
    """Parameters of a row of windows that the code depends on: ``pixels`` windows at a time."""

    pixels: int
    taps: int
    stride: int
    dilation: int

    @property
    def span(self) -> int:
        """Columns from the first to the last that the windows of a tile read."""
        return (self.pixels - 1) * self.stride + (self.taps - 1) * self.dilation + 1

    def __str__(self) -> str:
        return "x".join(map(str, self))


def plan_tile(columns: int, most: int, op: ops.Conv) -> RegisterTile:
    """Return the register tile for a row of ``columns`` windows: few tiles, with little overlap.

    The sums of ``most`` windows fit into registers.
    """
    pixels = tile_rows(columns, most)
    return RegisterTile(pixels, op.kernel[1], op.stride[1], op.dilation[1])


def decline_many(tile: RegisterTile, op: ops.Conv) -> None:
    """Raise Declined if windows read too many pixels in a tile."""
    seen = op.kernel[0] * tile.span
    decline_if(
        seen > MOST_SEEN,
        f"windows of {op.kernel} see {seen} pixels at a time; kernels take up to {MOST_SEEN}",
    )


def columns_read(tile: RegisterTile) -> dict[int, list[tuple[int, int]]]:
    """Return the columns that a tile's windows read: for each, its taps and their windows."""
    found: dict[int, list[tuple[int, int]]] = {}
    for tap in range(tile.taps):
        for pixel in range(tile.pixels):
            column = pixel * tile.stride + tap * tile.dilation
            found.setdefault(column, []).append((tap, pixel))
    return dict(sorted(found.items()))


Seen = Callable[[Word, int, Word], Word]
"""Returns the address of a byte of the pixel in a row of taps and a column of a tile, or an address
of zeros."""


def fill_indirection_buffer(
    k: Kernel, rows: int, row: Row, first: Word, seen: Word, span: int
) -> None:
    """Write the addresses of pixels in rows of taps to ``seen``, row after row.

    In each row, ``span`` columns begin with ``first``; outside pixels get the address of zeros.
    """
    for i in range(rows):
        y = row.top + row.down * i
        inside = (y > -1) & (y < row.height)
        line = row.image + y * row.row_bytes
        for j in range(span):
            x = first + j
            there = inside & (x > -1) & (x < row.width)
            address = choose(there, line + x * row.column_bytes, row.zeros)
            k.store_word(address, seen + (i * span + j) * INT)


def for_each_tile(
    k: Kernel, row: Row, rows: int, tile: RegisterTile, body: Callable[[Word, Word, Seen], None]
) -> None:
    """Write a loop over the windows of a row, tile by tile; the last tile begins early.

    At the edges of an image, pixels' addresses are written to an indirection buffer first. ``body``
    writes a tile, given the address of the first pixel, possibly outside; the address of the first
    output; and the function that returns pixels' addresses.
    """
    noted = k.scratch(math.ceil(rows * tile.span * INT / k.vector_bytes))
    rows_inside = (row.top > -1) & (row.top + row.down * (rows - 1) < row.height)

    with k.loop(row.columns, 0, tile.pixels) as few:
        first = minimum(few.i, row.columns - tile.pixels)
        column, output = first * tile.stride - row.left, row.output + first * row.output_bytes
        corner = row.image + row.top * row.row_bytes + column * row.column_bytes
        columns_inside = (column > -1) & (column + tile.span <= row.width)

        def inside(i: Word, j: int, place: Word) -> Word:
            return corner + i * row.down * row.row_bytes + row.column_bytes * j + place

        def outside(i: Word, j: int, place: Word) -> Word:
            pixel = k.load_word(noted + (i * tile.span + j) * INT)
            return choose(pixel > 0, pixel + place, row.zeros)

        with k.cases(choose(rows_inside & columns_inside, 1, 0)) as case:
            case(1)
            body(corner, output, inside)
            case(0)
            none = row._replace(zeros=k.word(0))
            fill_indirection_buffer(k, rows, none, column, noted, tile.span)
            body(corner, output, outside)


class Padded(NamedTuple):
    """Images of which rows are copied, with ``left`` zeros before, to rows of ``columns``."""

    height: Word
    width: Word
    left: Word
    columns: Word


def bordered(
    k: Kernel, y: Word, images: Padded, target: Word, zero: Vector | Float, step: int
) -> tuple[Word, Word]:
    """Write the zeros of a copied row, and return the range of columns to be copied.

    A row ``y`` outside the image is all zeros. Each zero has ``step`` bytes.
    """
    columns = images.columns
    inside = (y > -1) & (y < images.height)
    begin = choose(inside, images.left, columns)
    end = choose(inside, minimum(images.left + images.width, columns), columns)
    for stop, start in ((begin, 0), (columns, end)):
        with k.loop(stop, start) as column:
            k.store(zero, target + column.i * step)
    return begin, end


class WindowConvolution:
    """Base of convolutions with an offset for each channel and an epilogue."""

    def __init__(
        self, schedule: ConvSchedule, kernel: int, values: Values, rectifier: np.ndarray
    ) -> None:
        self.schedule, self._kernel, self._rectifier = schedule, kernel, rectifier
        self._none = aligned(schedule.y[1])
        self._arguments = Arguments(values)

    def take_slopes(self, slopes: np.ndarray) -> None:
        """Copy new slopes of negative sums: one for each channel, or one for all."""
        self._rectifier[...] = slopes

    def __call__(
        self,
        source: np.ndarray,
        target: np.ndarray,
        offsets: np.ndarray | None,
        scratch: np.ndarray | None = None,
    ) -> None:
        """Convolve, with one offset for each channel, None for zeros, and what scratch it takes."""
        each = {
            "x.at": source,
            "y.at": target,
            "offsets": self._none if offsets is None else offsets,
        }
        if scratch is not None:
            each["scratch"] = scratch
        self._arguments.run(self._kernel, self.schedule.tuning.threads, each)
