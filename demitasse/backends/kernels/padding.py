"""Copies of rows of images with zero padding, in kernels."""

from __future__ import annotations

from typing import NamedTuple

from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.words import Float, Vector, Word, choose, minimum


class Padded(NamedTuple):
    """Images of which rows are copied with zeros around them.

    Attributes:
        height: Rows of an image.
        width: Columns of it.
        left: Zeros before the first column.
        columns: Columns of a copied row, with its zeros.
    """

    height: Word
    width: Word
    left: Word
    columns: Word


def bordered(
    k: Kernel, y: Word, images: Padded, target: Word, zero: Vector | Float, step: int
) -> tuple[Word, Word]:
    """Write the zeros of a row of an image, and leave the rest to be copied.

    Args:
        k: The kernel.
        y: Index of the row, which may lie outside the image; then all is zero.
        images: The images.
        target: Address of the copied row.
        zero: What is written.
        step: Its bytes.

    Returns:
        The first of the columns that are the image's, and that after the last.
    """
    columns = images.columns
    inside = (y > -1) & (y < images.height)
    begin = choose(inside, images.left, columns)
    end = choose(inside, minimum(images.left + images.width, columns), columns)
    for stop, start in ((begin, 0), (columns, end)):
        with k.loop(stop, start) as column:
            k.store(zero, target + column.i * step)
    return begin, end
