"""Layouts of images as kernels know them."""

from __future__ import annotations

import math

from demitasse.backends.kernels.images import Images
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.library.primitive import BLOCK, channel_blocks

__all__ = ["images_in_vectors", "images_of", "in_padded_blocks"]

IMAGE_AXES = 4


def images_of(layout: Layout) -> Images | None:
    """Return a layout of (N, C, H, W) as kernels know it.

    None where there are other axes, or channels lie neither side by side nor in blocks, or are
    padded.
    """
    if len(layout.shape) != IMAGE_AXES:
        return None
    loops: dict[int, list[tuple[int, int]]] = {axis: [] for axis in range(4)}
    n, c, h, w = shape = layout.shape
    plain = [(axis, count, math.prod(shape[axis + 1 :])) for axis, count in enumerate(shape)]
    for axis, count, stride in plain if layout.plain else layout.key[1]:
        loops[axis].append((count, stride))
    channels = loops[1]
    if any(len(loops[axis]) > 1 for axis in (0, 2, 3)) or not 1 <= len(channels) <= 2:
        return None
    block, side_by_side = channels[-1]
    if side_by_side != 1 or math.prod(count for count, _ in channels) != c:
        return None
    image, row, column = (loops[axis][0][1] if loops[axis] else layout.size for axis in (0, 2, 3))
    if w == 1 < h:  # pixels follow each other as rows do
        column = row
    return Images((n, c, h, w), image, row, column, block, channels[0][1] if block < c else 0)


def in_padded_blocks(engine: Engine, layout: Layout) -> Images | None:
    """Return the images of a layout in blocks with the channels that fill the last; else None."""
    if layout is not channel_blocks(engine, layout.shape, BLOCK):
        return None
    n, c, h, w = layout.shape
    return Images.in_blocks((n, -(-c // BLOCK) * BLOCK, h, w), BLOCK)


def images_in_vectors(layout: Layout, width: int) -> Images | None:
    """Return the images of a layout; None where it has no vectors of so many channels."""
    images = images_of(layout)
    return images if images is not None and images.fits(width) else None
