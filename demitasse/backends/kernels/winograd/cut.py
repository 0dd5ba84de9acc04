"""The input transform: images are cut into tiles, and these taken to the points."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from demitasse.backends.kernels.borders import Padded, bordered
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import EACH_CALL, Struct, Values
from demitasse.backends.kernels.language.words import FLOAT, INT, Word
from demitasse.backends.kernels.winograd.matrices import Filtering
from demitasse.backends.kernels.winograd.strips import Block, StripFields, each_strip

__all__ = ["ImageFields", "Piece", "Points", "cut", "each_vector", "image_values"]


class ImageFields(Struct):
    """A batch of images whose channels are contiguous."""

    at: Word
    """Address of the first image."""
    image_stride: Word
    """Elements from one image to the next."""
    row_stride: Word
    """Elements from one row to the next."""
    column_stride: Word
    """Elements from one column to the next."""
    height: Word
    """Rows of an image."""
    width: Word
    """Columns of an image."""
    top: Word
    """Zeros above an image."""
    left: Word
    """Zeros on the left of it."""
    vectors: Word
    """How many vectors a pixel has."""
    vector_table: Word
    """Address of their table: for each, elements from the pixel's beginning, and its channel."""


def image_values(
    images: Images, size: tuple[int, int], width: int, pad: tuple[int, int] = (0, 0)
) -> Values:
    """Return the values of those fields but for the address.

    Args:
        images: The images.
        size: Rows and columns that tiles are made of.
        width: Channels of a vector.
        pad: Zeros above and on the left of an image.

    Raises:
        ValueError: A vector's channels are not contiguous.
    """
    table = np.array([(offset, first) for first, offset in images.vectors(width)], np.int64)
    return ImageFields.values(
        at=EACH_CALL,
        image_stride=images.image_stride,
        row_stride=images.row_stride,
        column_stride=images.column_stride,
        height=size[0],
        width=size[1],
        top=pad[0],
        left=pad[1],
        vectors=len(table),
        vector_table=table,
    )


class Piece(NamedTuple):
    """How tiles cover the images.

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
    """Where tiles go at the points.

    Attributes:
        at: Address of a block's first tile at the first point.
        tile_bytes: Bytes from one tile to the next.
        point_bytes: Bytes from one point to the next.
    """

    at: Word
    tile_bytes: Word
    point_bytes: Word


@contextmanager
def each_vector(k: Kernel, images: ImageFields) -> Iterator[tuple[Word, Word]]:
    """Write what is done to each vector of a pixel.

    Yields:
        Bytes from where the pixel begins, and from where its tile does.
    """
    with k.loop(images.vectors) as vector:
        entry = images.vector_table + vector.i * (2 * INT)
        yield k.load_word(entry) * FLOAT, k.load_word(entry + INT) * FLOAT


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
    with each_strip(k, f, block) as strip, each_vector(k, images) as (pixel_bytes, channel_bytes):
        source = images.at + strip.image * images.image_stride * FLOAT + pixel_bytes
        first = strip.row * piece.down - images.top
        with k.loop(piece.rows) as line:
            y = first + line.i
            row = source + (y * images.row_stride - images.left * images.column_stride) * FLOAT
            copy = block.copy + line.i * row_bytes
            padded = Padded(images.height, images.width, images.left, columns)
            begin, end = bordered(k, y, padded, copy, k.constant(0.0), vector)
            with k.loop(end, begin) as column:
                value = k.load(row + column.i * images.column_stride * FLOAT)
                k.store(value, copy + column.i * vector)
        with k.loop(f.tile_columns) as number:
            k.call(
                transform,
                block.copy + number.i * (piece.across * vector),
                row_bytes,
                vector,
                target.at + channel_bytes + (strip.tile + number.i) * target.tile_bytes,
                target.point_bytes,
                block.scratch,
            )
