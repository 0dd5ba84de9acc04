"""The input transform: images are cut into tiles, and these taken to the points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from demitasse.backends.kernels.borders import Padded, bordered
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import EACH_CALL, Address, Output, Struct, Values
from demitasse.backends.kernels.language.words import FLOAT, INT, Word
from demitasse.backends.kernels.winograd.matrices import Filtering
from demitasse.backends.kernels.winograd.phases import Phase
from demitasse.backends.kernels.winograd.strips import Block, StripFields, each_strip

__all__ = ["ImageFields", "OutputFields", "Piece", "Points", "cut", "each_vector", "image_values"]


class ImageFields(Struct):
    """A batch of images whose channels are contiguous."""

    at: Address
    """Address of the first image."""
    image_stride: Word
    """Elements from one image to the next."""
    row_stride: Word
    """Elements from one row to the next."""
    column_stride: Word
    """Elements from one column to the next."""
    vectors: Word
    """Number of vectors of a pixel."""
    vector_table: Address
    """Address of their table: for each, bytes from the pixel's beginning, bytes from where a tile's
    channels begin, rows and columns of its image, zeros above it, and zeros on the left."""


class OutputFields(ImageFields):
    """A batch of images that is written."""

    at: Output
    """Address of the first image."""


class Tiled(NamedTuple):
    """A vector of a pixel, in the kernel.

    Attributes:
        pixel_bytes: From where the pixel begins.
        channel_bytes: From where its tile does.
        height: Rows of the image.
        width: Columns of it.
        top: Zeros above the image.
        left: Zeros on the left of it.
    """

    pixel_bytes: Word
    channel_bytes: Word
    height: Word
    width: Word
    top: Word
    left: Word


def image_values(
    images: Images,
    size: tuple[int, int],
    width: int,
    phases: Sequence[Phase] = (Phase(),),
    *,
    of: type[ImageFields] = ImageFields,
) -> Values:
    """Return the values of those fields but for the address.

    Args:
        images: The images.
        size: Rows and columns of all phases.
        width: Channels of a vector.
        phases: Which of the images' pixels tiles are made of, and the zeros above and on the left;
            the channels of several phases follow each other.
        of: The struct.

    Raises:
        ValueError: A vector's channels are not contiguous.
    """
    rows, columns, step = images.row_stride, images.column_stride, phases[0].step
    table = np.array(
        [
            (
                FLOAT * (offset + phase.first[0] * rows + phase.first[1] * columns),
                FLOAT * (number * images.shape[1] + first),
                *phase.size(size),
                *phase.pad,
            )
            for number, phase in enumerate(phases)
            for first, offset in images.vectors(width)
        ],
        np.int64,
    )
    return of.values(
        at=EACH_CALL,
        image_stride=images.image_stride,
        row_stride=rows * step,
        column_stride=columns * step,
        vectors=len(table),
        vector_table=table,
    )


class Piece(NamedTuple):
    """Tiling of the images.

    Attributes:
        rows: Rows of a tile.
        down: Rows from one tile to the next.
        across: Columns from one tile to the next.
        overlap: Columns that a tile has in common with the next.
    """

    rows: int
    down: int
    across: int
    overlap: int

    @classmethod
    def of_input(cls, of: Filtering) -> Piece:
        """Return that of a convolution's input."""
        down, across = of
        return cls(down.side, down.outputs, across.outputs, across.side - across.outputs)

    @classmethod
    def of_output(cls, of: Filtering) -> Piece:
        """Return that of its output."""
        down, across = of
        return cls(down.outputs, down.outputs, across.outputs, 0)


class Points(NamedTuple):
    """Layout of transformed tiles.

    Attributes:
        at: Address of a block's first tile at the first point.
        tile_bytes: Bytes from one tile to the next.
        point_bytes: Bytes from one point to the next.
    """

    at: Word
    tile_bytes: Word
    point_bytes: Word


@contextmanager
def each_vector(k: Kernel, images: ImageFields) -> Iterator[Tiled]:
    """Write what is done to each vector of a pixel."""
    with k.loop(images.vectors) as vector:
        columns = len(Tiled._fields)
        yield Tiled(*k.load_words(images.vector_table + vector.i * (columns * INT), columns))


def cut(
    k: Kernel,
    f: StripFields,
    images: ImageFields,
    block: Block,
    transform: Kernel,
    piece: Piece,
    target: Points,
) -> None:
    """Write the input transform of all tiles of a block's strips.

    Vector by vector, a strip is copied to a buffer with zero padding, where its rows are
    contiguous.

    Args:
        k: The kernel.
        f: Its fields of strips.
        images: Its fields of the images.
        block: The block.
        transform: Of one tile.
        piece: How tiles cover the images.
        target: Where the tiles go.
    """
    vector = k.vector_bytes
    columns = f.tile_columns * piece.across + piece.overlap
    row_bytes = columns * vector
    with each_strip(k, f, block) as strip, each_vector(k, images) as tiled:
        source = images.at + strip.image * images.image_stride * FLOAT + tiled.pixel_bytes
        first = strip.row * piece.down - tiled.top
        with k.loop(piece.rows) as line:
            y = first + line.i
            row = source + (y * images.row_stride - tiled.left * images.column_stride) * FLOAT
            copy = block.scratch + line.i * row_bytes
            padded = Padded(tiled.height, tiled.width, tiled.left, columns)
            begin, end = bordered(k, y, padded, copy, k.constant(0.0), vector)
            with k.loop(end, begin) as column:
                value = k.load(row + column.i * images.column_stride * FLOAT)
                k.store(value, copy + column.i * vector)
        with k.loop(f.tile_columns) as number:
            k.call(
                transform,
                block.scratch + number.i * (piece.across * vector),
                row_bytes,
                vector,
                target.at + tiled.channel_bytes + (strip.tile + number.i) * target.tile_bytes,
                target.point_bytes,
                target.tile_bytes,
            )
