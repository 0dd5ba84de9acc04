"""How an image is cut into tiles, and where its elements and theirs lie."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from demitasse.backends.onednn.engine import Missing
from demitasse.backends.onednn.layout import Layout
from demitasse.backends.onednn.winograd.matrices import Matrices
from demitasse.backends.onednn.winograd.pieces import View, pitch

__all__ = ["Axes", "Tiling"]

CHUNK = 5 << 20
"""Bytes of a transformed stack that are worked on at a time: two of them stay in a cache.

More than two lanes have as much more. Bands of an image may be half as large again, for fewer of
them fit.
"""

LINE, WIDE = 16, 128
"""Elements of a cache line, and of a row from which on rows are kept from competing for them."""

FILTERS = 10 << 20
"""Bytes of transformed filters that stay in a cache beside the stacks."""


class Axes:
    """The strides of (N, C, H, W) in a layout, the channels as one loop or as blocks.

    Raises:
        Missing: It has loops of another kind, or padding.
    """

    def __init__(self, layout: Layout) -> None:
        loops: dict[int, list[tuple[int, int]]] = {axis: [] for axis in range(4)}
        parts = View.rows(*layout.shape).strides
        for axis, count, stride in (
            zip(range(4), layout.shape, parts, strict=True) if layout.plain else layout.key[1]
        ):
            loops[axis].append((count, stride))
        if any(len(loops[axis]) > 1 for axis in (0, 2, 3)):
            raise Missing
        self.image, self.row, self.column = (
            loops[axis][0][1] if loops[axis] else layout.size for axis in (0, 2, 3)
        )
        self.counts = tuple(count for count, _ in loops[1]) or (1,)
        self.steps = tuple(stride for _, stride in loops[1]) or (1,)
        if math.prod(self.counts) != layout.shape[1]:
            raise Missing

    @property
    def packed(self) -> tuple[int, ...]:
        """The strides of the channel loops where the channels lie one after the other."""
        return View.rows(*self.counts).strides


@dataclass(frozen=True)
class Tiling:
    """The tiles of a stack of images: pieces of the input that overlap, pieces of the output.

    Attributes:
        matrices: Of the filter.
        images: How many images there are.
        channels: Of the input.
        size: Rows and columns of the input.
        filters: Channels of the output.
        groups: Into how many parts channels and filters are divided.
        pad: Zeros above and left of the input.
        output: Rows and columns of the output.
        lanes: Into how many parts of equal size the images are divided. The lane is the outermost
            axis of all that is done to them, along which the library divides work among threads.
            So no core reads what another one wrote, which takes several times as long where they
            do not share a cache.
    """

    matrices: Matrices
    images: int
    channels: int
    size: tuple[int, int]
    filters: int
    groups: int
    pad: tuple[int, int]
    output: tuple[int, int]
    lanes: int = 1

    def divided(self, threads: int) -> Tiling:
        """Return the same with a lane for each thread, or for several where that is not possible.

        With few images and many filters threads divide the points instead: filters are read once.
        """
        parts = threads if self._filter_bytes <= FILTERS else 1
        return replace(self, lanes=_divisor(self.images, parts))

    @cached_property
    def gradient(self) -> Tiling:
        """What the filters' gradient is summed over; each lane has a sum of its own."""
        return replace(self, lanes=_divisor(self.lanes, FILTERS // self._filter_bytes))

    @cached_property
    def points(self) -> int:
        """How many points the tiles are looked at: products for each piece of the output."""
        return len(self.matrices.input) ** 2

    @cached_property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of tiles of one image."""
        step = self.matrices.outputs
        return -(-self.output[0] // step), -(-self.output[1] // step)

    @cached_property
    def padded(self) -> tuple[int, int]:
        """Rows and columns of an image with zeros around it, as the tiles reach."""
        more, step = self.matrices.taps - 1, self.matrices.outputs
        return self.bands * self.band * step + more, self.grid[1] * step + more

    @cached_property
    def lane(self) -> int:
        """Images of a lane."""
        return self.images // self.lanes

    @cached_property
    def chunk(self) -> int:
        """Images of a lane that are worked on at a time, a divisor of their number."""
        return _divisor(self.lane, self._space // (self._row * self.grid[0]))

    @cached_property
    def bands(self) -> int:
        """Into how many bands of rows a large image is divided, which are worked on in turn."""
        rows = self.grid[0]
        return -(-rows // min(rows, max(1, 3 * self._space // (2 * self._row))))

    @cached_property
    def band(self) -> int:
        """Rows of tiles of a band."""
        return -(-self.grid[0] // self.bands)

    @cached_property
    def tiles(self) -> int:
        """Tiles of a lane that are worked on at a time."""
        return self.chunk * self.band * self.grid[1]

    @cached_property
    def _space(self) -> int:
        """Bytes of a stack that are worked on at a time."""
        return CHUNK * max(2, self.lanes) // 2

    @cached_property
    def _row(self) -> int:
        """Bytes of one row of tiles in every lane, transformed."""
        return self.lanes * self.points * self.grid[1] * max(self.tile, self.sum) * 4

    @cached_property
    def _filter_bytes(self) -> int:
        """Bytes of the filters, transformed."""
        return self.points * self.weights * 4

    @cached_property
    def tile(self) -> int:
        """Elements from one tile of the input to the next, at a point."""
        return _apart(self.channels)

    @cached_property
    def sum(self) -> int:
        """Elements from one tile of the output to the next, at a point."""
        return _apart(self.filters)

    @cached_property
    def data(self) -> int:
        """Elements from one point's values of the input to the next's."""
        return pitch(self.tiles * self.tile)

    @cached_property
    def sums(self) -> int:
        """Elements from one point's values of the output to the next's."""
        return pitch(self.tiles * self.sum)

    @cached_property
    def stack(self) -> int:
        """Elements from one lane's values at the points to the next's, in all buffers alike.

        Products read ahead, as far as a whole lane behind its end. What lies there must not be the
        next lane, which would come from the cache of another core and have to go back.
        """
        return min(self.lanes, 2) * self.points * max(self.data, self.sums)

    @cached_property
    def depth(self) -> int:
        """How many filters of one channel there are."""
        return self.channels * self.filters // self.groups

    @cached_property
    def row(self) -> int:
        """Elements from one channel's filters to the next's."""
        return _apart(self.filters // self.groups)

    @cached_property
    def weights(self) -> int:
        """Elements from one point's values of the filters to the next's."""
        return pitch(self.channels * self.row)

    @cached_property
    def backward(self) -> Tiling:
        """The convolution that is the gradient of the input."""
        rest = self.matrices.taps - 1
        pad = (rest - self.pad[0], rest - self.pad[1])
        return replace(
            self, channels=self.filters, filters=self.channels, size=self.output, pad=pad,
            output=self.size,
        )  # fmt: skip

    # -- where things lie ----------------------------------------------------------------------

    def border(self, image: Axes) -> tuple[View, View]:
        """Return a chunk of images in their layout, and the same inside the zeros around them."""
        rows, columns = self.padded
        c = self.channels
        shape = (self.lanes, self.chunk, *self.size, *image.counts)
        here = (self.lane * image.image, image.image, image.row, image.column, *image.steps)
        area = rows * columns * c
        there = (self.chunk * area, area, columns * c, c, *image.packed)
        inside = (self.pad[0] * columns + self.pad[1]) * c
        return View(shape, here), View(shape, there, inside)

    def windows(self) -> Iterator[tuple[View, View]]:
        """Yield parts of the padded images' first band, and where they go in a stack of tiles.

        Pieces of the input overlap, but those parts of them that are as long as a step do not.
        """
        side, step, c = len(self.matrices.input), self.matrices.outputs, self.channels
        rows, columns = self.padded
        down, right = self.band, self.grid[1]
        area, tile = rows * columns * c, self.tile
        lanes = self.chunk * area, self.stack
        source = (columns * c, c, lanes[0], area, step * columns * c, step * c, 1)
        target = (
            side * self.data, self.data, lanes[1], down * right * tile, right * tile, tile, 1,
        )  # fmt: skip
        for i in range(0, side, step):
            for j in range(0, side, step):
                part = (min(step, side - i), min(step, side - j))
                shape = (*part, self.lanes, self.chunk, down, right, c)
                yield (
                    View(shape, source, (i * columns + j) * c),
                    View(shape, target, (i * side + j) * self.data),
                )

    def outputs(self, image: Axes, *, last: bool) -> Iterator[tuple[View, View]]:
        """Yield parts of a stack of output tiles, and where they lie in a band of the images.

        The last tiles of a row or column may be cut off.

        Args:
            image: Of the output.
            last: Whether it is the last band, which may have fewer rows.
        """
        step, tile = self.matrices.outputs, self.sum
        down, right = self.band, self.grid[1]
        before = (self.bands - 1) * down * step
        rows = self.output[0] - before if last else min(down * step, self.output[0])
        per_image = down * right * tile
        lanes = self.stack, self.lane * image.image
        source = (
            step * self.sums,
            self.sums,
            lanes[0],
            per_image,
            right * tile,
            tile,
            *image.packed,
        )
        target = (
            image.row, image.column, lanes[1], image.image, step * image.row, step * image.column,
            *image.steps,
        )  # fmt: skip
        for top, tall, high in _spans(rows, step):
            for left, wide, broad in _spans(self.output[1], step):
                shape = (high, broad, self.lanes, self.chunk, tall, wide, *image.counts)
                yield (
                    View(shape, source, (top * right + left) * tile),
                    View(shape, target, step * (top * image.row + left * image.column)),
                )

    @cached_property
    def next_band(self) -> int:
        """Rows from one band to the next."""
        return self.band * self.matrices.outputs


def _apart(count: int) -> int:
    """Return how many elements rows of ``count`` are apart in a matrix.

    Those of many whole cache lines would compete for a few places in the cache: products of 512
    channels with 512 filters take half as long again.
    """
    return count + LINE if count >= WIDE and count % (4 * LINE) == 0 else count


def _divisor(count: int, most: int) -> int:
    """Return the largest divisor of ``count`` that is not above ``most``; 1 at least."""
    return max((n for n in range(1, min(count, most) + 1) if count % n == 0), default=1)


def _spans(size: int, step: int) -> Iterator[tuple[int, int, int]]:
    """Yield first tile, number of tiles and their height: whole tiles, and the one cut off."""
    whole, rest = divmod(size, step)
    if whole:
        yield 0, whole, step
    if rest:
        yield whole, 1, rest
