"""Rows of images with zeros around them, in kernels."""

from __future__ import annotations

from demitasse.backends.kernels.language.kernel import Kernel, Value

__all__ = ["bordered"]


def bordered(
    k: Kernel,
    y: Value,
    size: tuple[Value, Value],
    left: Value,
    wide: Value,
    target: tuple[Value, Value, int],
) -> tuple[Value, Value]:
    """Write the zeros of a row of an image, and leave the rest to be copied.

    Args:
        k: The kernel.
        y: The row's number, which may be beyond the image; then all is zero.
        size: Rows and columns of the image.
        left: Zeros before the first column.
        wide: Columns that are wanted, with those zeros.
        target: Where the row goes, a zero, and its bytes.

    Returns:
        The first of the columns that are the image's, and that behind the last.
    """
    height, breadth = size
    there, zero, step = target
    inside = k.both(k.below(-1, y), k.below(y, height))
    begin = k.choose(inside, left, wide)
    end = k.choose(inside, k.least(k.add(left, breadth), wide), wide)
    for turns in ((begin, 0), (wide, end)):
        with k.loop(*turns) as column:
            k.store(zero, k.add(there, k.times(column.i, step)))
    return begin, end
