"""Where the elements of a stack of images lie, for code that reads vectors of channels."""

from __future__ import annotations

import math

from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.step import Declined

__all__ = ["Axes", "first_channels"]


def first_channels(count: int, width: int) -> list[int]:
    """Return the first channel of each vector; the last begins early where they do not divide."""
    return [min(at, count - width) for at in range(0, count, width)]


class Axes:
    """The strides of (N, C, H, W) in a layout whose channels lie side by side, in blocks or all.

    Args:
        layout: Of the images.
        width: Channels of a vector.

    Attributes:
        image: Elements from one image to the next.
        row: Elements from one row to the next.
        column: Elements from one column to the next.
        vectors: First channel of each vector, and where it lies in its pixel. The last one begins
            early where the channels do not divide; some are then in two vectors.

    Raises:
        Declined: A vector's channels do not lie side by side, or there is padding.
    """

    def __init__(self, layout: Layout, width: int) -> None:
        loops: dict[int, list[tuple[int, int]]] = {axis: [] for axis in range(4)}
        shape = layout.shape
        plain = [(axis, n, math.prod(shape[axis + 1 :])) for axis, n in enumerate(shape)]
        for axis, count, stride in plain if layout.plain else layout.key[1]:
            loops[axis].append((count, stride))
        channels = loops[1]
        if any(len(loops[axis]) > 1 for axis in (0, 2, 3)) or not 1 <= len(channels) <= 2:
            message = "channels that do not lie side by side; our kernels take those that do"
            raise Declined(message)
        block, side_by_side = channels[-1]
        whole = len(channels) == 1 or block % width == 0
        if (
            side_by_side != 1
            or block < width
            or not whole
            or math.prod(count for count, _ in channels) != shape[1]
        ):
            message = "channels that do not lie side by side; our kernels take those that do"
            raise Declined(message)
        self.image, self.row, self.column = (
            loops[axis][0][1] if loops[axis] else layout.size for axis in (0, 2, 3)
        )
        next_block = channels[0][1] if len(channels) > 1 else 0
        firsts = first_channels(shape[1], width)
        self.vectors = [(at, at // block * next_block + at % block) for at in firsts]
