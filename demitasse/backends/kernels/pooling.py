"""MAX and AVE pooling, forward and backward, of vectors of channels.

A tile is some adjacent windows of a row; backward it is the columns of the gradient between them.
Its sums or maxima stay in registers. The rows of a window are listed in a table. Its columns are
written out: each kind of tile, by its columns outside the image, has code of its own.
One thread computes a result, in the same order for any number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from itertools import product
from typing import NamedTuple

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.bound import BoundKernel, threads_for
from demitasse.backends.kernels.images import (
    ImageFields,
    Images,
    OutputFields,
    first_channels,
    need_layout,
)
from demitasse.backends.kernels.language.kernel import Kernel, Loop
from demitasse.backends.kernels.language.structs import Address, Output, Struct
from demitasse.backends.kernels.language.values import (
    FLOAT,
    HALF,
    INT,
    Vector,
    Word,
    choose,
    clamp_min,
    integers,
    minimum,
)
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.kernels.windows import Inside, TileFields, Tiles, for_each_tile, inside
from demitasse.backends.step import decline_if
from demitasse.backends.windows import Window

SUMS = {4: 28, 8: 12, 16: 28}
"""Floats of a vector -> sums or maxima that fit into registers."""

MOST_COLUMNS = 8
"""Columns between the windows of a tile at most: more gain nothing."""

MOST_WHOLE = 16
"""The same of a window that is the whole image, whose pixels can be divided into any columns."""

MOST_CODE = 256
"""Columns of windows that are written out at most, of all kinds of tiles together."""

MOST_VECTORS = 12
"""Adjacent vectors of a pixel that a tile has at most."""

FEWEST_EACH = 1 << 12
"""Elements of a thread at least."""

BITS = 16
"""Bits of the number of a winning element."""


class PoolFields(Struct):
    """Images ``x`` and their windows ``y``, one of which is read and the other written.

    Rows are those of all planes, where there are three axes.
    """

    source: ImageFields
    target: OutputFields
    lines: Address
    """Range of bytes of ``rows`` for each row that is written: the rows that it depends on."""
    rows: Address
    """Rows that are read, and the number of the windows' first element there."""
    tiles: TileFields
    """Tiles by their first column of ``y``."""
    left: Word
    """Columns that the first window begins before an image."""
    divisors: Address
    """Divisors of the means of an image's windows; for gradients their reciprocals."""
    numbers: Address
    """Numbers of the elements of a window."""
    winners: Address
    """Number of the element that won each window: for each image, window and channel."""


class PoolForwardFields(PoolFields):
    """Images that are pooled."""

    winners: Output


class PoolShape(NamedTuple):
    """Parameters that the code depends on.

    Attributes:
        method: "max", "ave", or "winners" for MAX with the numbers of the winning elements.
        vectors: Adjacent vectors of a pixel that are computed at a time.
        pixels: Windows of a tile, or strides of a gradient's tile.
        taps: Columns of a window.
        stride: Columns from one window to the next.
        tiles: Tiles with their columns inside the image and, for gradients, their windows, both
            counted from the tile's first.
        sizes: Bytes of an element of images and of windows.
    """

    method: str
    vectors: int
    pixels: int
    taps: int
    stride: int
    tiles: Tiles
    sizes: tuple[int, int] = (FLOAT, FLOAT)

    def __str__(self) -> str:
        return "x".join(map(str, (*self[:-1], *self.sizes)))

    def windows(self, column: int, windows: Sequence[int]) -> list[tuple[int, int]]:
        """Return those of some windows that a column is in, and its tap in each."""
        taps = [(window, column - window * self.stride) for window in windows]
        return [(window, tap) for window, tap in taps if 0 <= tap < self.taps]


Body = Callable[[Inside, Word, Word, Word, Word, Word], None]
"""Writes some vectors of a tile: takes its columns inside, the number of the row, the addresses of
the tile in the first row of what is read and written, the number of its first window in a row, and
the address of the winners of an image's first window."""


def _each_tile(
    k: Kernel, f: PoolFields, shape: PoolShape, body: Body, *, gradient: bool = False
) -> None:
    """Write a loop over this thread's rows, their tiles, and the vectors of these."""
    x, y = (f.target, f.source) if gradient else (f.source, f.target)
    floats = shape.vectors * k.width
    (x_size, y_size), (x_bytes, y_bytes) = shape.sizes, _pixel_bytes(x, y, shape)
    with k.parallel_loop(x.images, f.target.rows) as (image, row):
        winners = f.winners + image * y.rows * y.columns * x.channels * HALF
        images = x.at + image * x.image_stride * x_size
        windows = y.at + image * y.image_stride * y_size

        def tile(first: Word, seen: Inside) -> None:
            ends = images + (first * shape.stride - f.left) * x_bytes, windows + first * y_bytes
            source, target = reversed(ends) if gradient else ends
            with k.loop((x.channels + (floats - 1)) // floats) as some:
                # the last begins early where they do not divide
                channel = minimum(some.i * floats, x.channels - floats)
                sizes = (y_size, x_size) if gradient else (x_size, y_size)
                source_at, target_at = (channel * size for size in sizes)
                lanes = winners + channel * HALF
                body(seen, row, source + source_at, target + target_at, first, lanes)

        for_each_tile(k, f.tiles, shape.tiles, tile)


def _pixel_bytes(x: ImageFields, y: ImageFields, shape: PoolShape) -> tuple[Word, Word]:
    """Return the bytes from one pixel to the next, of images and of windows."""
    return x.column_stride * shape.sizes[0], y.column_stride * shape.sizes[1]


@contextmanager
def _each_row(
    k: Kernel, f: PoolFields, line: Word, vectors: Sequence[Vector]
) -> Iterator[tuple[Loop, Word, Word]]:
    """Write a loop over the rows that a row depends on, and the windows' rows of elements there."""
    begin, end = k.load_words(f.lines + line * (2 * INT), 2)
    with k.loop(end, begin, 2 * INT, vectors=vectors) as row:
        source, taps = k.load_words(f.rows + row.i, 2)
        yield row, source, taps


@PoolForwardFields.kernel("pool")
def _kernel(k: Kernel, f: PoolForwardFields, shape: PoolShape) -> None:
    tile, vectors, keeps = range(shape.pixels), range(shape.vectors), shape.method == "winners"
    is_mean = shape.method == "ave"
    x, y = f.source, f.target
    (x_size, y_size), (x_bytes, y_bytes) = shape.sizes, _pixel_bytes(x, y, shape)
    span = (shape.pixels - 1) * shape.stride + shape.taps
    steps = [x_bytes * column for column in range(span)]
    targets = [y_bytes * pixel for pixel in tile]
    load, store = k.access(x_size)[0], k.access(y_size)[1]
    nothing, none = k.constant(0.0 if is_mean else ops.LOWEST), k.constant(-1.0)
    join = Vector.__add__ if is_mean else clamp_min

    def body(seen: Inside, row: Word, source: Word, target: Word, first: Word, lanes: Word) -> None:
        [columns] = seen
        # with winners maxima of windows, without them of columns, which several windows share
        ends = list(product(tile if keeps else columns, vectors))
        begin = [nothing] * len(ends) + [none] * (len(ends) * keeps)
        with _each_row(k, f, row, begin) as (loop, line, tap):
            here, number = source + line * x.row_stride * x_size, f.numbers + tap * FLOAT
            numbers = [k.broadcast(number + FLOAT * i) for i in range(shape.taps * keeps)]
            found = dict(zip(ends, loop.vectors, strict=False))
            winners = dict(zip(ends, loop.vectors[len(ends) :], strict=False))
            for column, vector in product(columns, vectors):
                value = load(here + steps[column] + vector * k.width * x_size)
                joined = shape.windows(column, tile) if keeps else [(column, 0)]
                for end, i in joined:
                    place = end, vector
                    if keeps:
                        better = value > found[place]
                        winners[place] = choose(better, numbers[i], winners[place])
                    found[place] = join(found[place], value)
            loop.vectors = [*found.values(), *winners.values()]
        found = dict(zip(ends, loop.vectors, strict=False))
        window, there = row * y.columns + first, target + row * y.row_stride * y_size
        for pixel, vector in product(tile, vectors):
            own = [pixel] if keeps else [at for at in columns if shape.windows(at, [pixel])]
            result = reduce(join, [found[at, vector] for at in own] or [nothing])
            if is_mean:
                result = result / k.broadcast(f.divisors + (window + pixel) * FLOAT)
            store(result, there + targets[pixel] + vector * k.width * y_size)
            if keeps:
                winner = loop.vectors[len(ends) + ends.index((pixel, vector))]
                lane = (window + pixel) * x.channels + vector * k.width
                k.store_lanes(integers(winner).truncated(BITS), lanes + lane * HALF)

    _each_tile(k, f, shape, body)


@PoolFields.kernel("pool_gradient")
def _gradient_kernel(k: Kernel, f: PoolFields, shape: PoolShape) -> None:
    y, x, vectors = f.source, f.target, range(shape.vectors)
    x_bytes, y_bytes = _pixel_bytes(x, y, shape)
    steps = [x_bytes * column for column in range(shape.pixels * shape.stride)]
    before = (shape.taps - 1) // shape.stride
    sources = {pixel: y_bytes * pixel for pixel in range(-before, shape.pixels)}

    def body(seen: Inside, row: Word, source: Word, target: Word, first: Word, lanes: Word) -> None:
        columns, windows = seen
        ends = list(product(columns, vectors))
        with _each_row(k, f, row, [k.constant(0.0)] * len(ends)) as (loop, line, tap):
            here, window = source + line * y.row_stride * FLOAT, line * y.columns + first
            numbers = [k.lanes(tap + i, k.width, 32) for i in range(shape.taps)]
            sums = dict(zip(ends, loop.vectors, strict=True))
            for pixel, vector in product(windows, vectors):
                dy = k.load(here + sources[pixel] + vector * k.vector_bytes)
                if shape.method == "ave":
                    dy = dy * k.broadcast(f.divisors + (window + pixel) * FLOAT)
                else:
                    lane = (window + pixel) * x.channels + vector * k.width
                    winner = k.load_lanes(lanes + lane * HALF, k.width, BITS).extended(32)
                for column in columns:
                    for _, i in shape.windows(column, [pixel]):
                        share = dy
                        if shape.method != "ave":
                            share = choose(winner.equals(numbers[i]), dy, 0.0)
                        sums[column, vector] += share
            loop.vectors = [*sums.values()]
        there = target + row * x.row_stride * FLOAT
        for (column, vector), total in zip(ends, loop.vectors, strict=True):
            k.store(total, there + steps[column] + vector * k.vector_bytes)

    _each_tile(k, f, shape, body, gradient=True)


Axis = tuple[int, int, int, int, int]
"""Elements, windows, elements of a window, elements from one window to the next, elements that the
first window begins before the first element."""


class Pooling:
    """MAX or AVE pooling and its gradient.

    Args:
        x, y: Images of the bottom and the top; the rows of three axes are those of all planes.
        trains: Whether the numbers of the winning elements are kept for the gradient.

    Attributes:
        winners: Memory for the numbers of the winning elements.
        forward: Takes x and y.
        backward: Takes the gradient of y, and that of the images that were pooled last.
    """

    def __init__(
        self, op: ops.Pool, x: Images, y: Images, tuning: Tuning, *, trains: bool = False
    ) -> None:
        need_layout(x.fits(tuning.width) and y.fits(tuning.width), x, y)
        self.tuning, self._op = tuning, op
        self._has_winners = op.method == "MAX" and trains
        taps = math.prod(op.kernel)
        decline_if(taps >= 1 << BITS and self._has_winners, f"windows of {taps} elements")
        count = math.prod(x.shape[:2]) * math.prod(op.top[2:])
        self.winners = aligned(math.ceil(count * HALF / FLOAT) if self._has_winners else 1)
        self._threads = threads_for(tuning, math.prod(x.shape), FEWEST_EACH)
        self.forward = self._bound(x, y)
        if trains:
            self.backward = self._bound(x, y, gradient=True)

    def _bound(self, x: Images, y: Images, *, gradient: bool = False) -> BoundKernel:
        """Return the kernel of one direction."""
        op, width, channels = self._op, self.tuning.width, x.shape[1]
        axes = list(zip(op.bottom[2:], op.top[2:], op.kernel, op.stride, op.pad, strict=True))
        whole = op.kernel == op.bottom[2:] and math.prod(op.top[2:]) == 1 and not any(op.pad)
        if whole and x.is_even:
            pixels, most = math.prod(op.kernel), MOST_WHOLE if gradient else 1
            columns = max(n for n in range(1, most + 1) if pixels % n == 0)
            axes = [(size, 1, size, 1, 0) for size in (pixels // columns, columns)]
            sizes = pixels // columns, columns
            x = replace(x, shape=(*x.shape[:2], *sizes), row_stride=columns * x.column_stride)
        *_, taps, stride, pad = axes[-1]
        pixels, vectors = self._tile_size(axes[-1], channels, gradient=gradient)
        pixels, tiles = _tiles(axes[-1], pixels, gradient=gradient)
        decline_if(taps * len(tiles.cases) > MOST_CODE, f"windows of {taps} columns")
        lines, rows = _rows(axes[:-1], taps, gradient=gradient)
        window = Window(op.kernel, op.stride, op.pad, (1,) * len(op.kernel), op.after)
        divisors = window.divisors(op.bottom[2:], op.top[2:], pads=op.counts_pads)
        method = "winners" if self._has_winners else op.method.lower()
        shape = PoolShape(
            method, vectors, pixels, taps, stride, tiles, (x.element_bytes, y.element_bytes)
        )
        struct = PoolFields if gradient else PoolForwardFields
        source, target = (y, x) if gradient else (x, y)
        values = struct.values(
            source=ImageFields.of(source),
            target=OutputFields.of(target),
            lines=np.array(lines, np.int64),
            rows=np.array(rows or [(0, 0)], np.int64),
            tiles=TileFields.of(tiles),
            left=pad,
            divisors=(1 / divisors if gradient else divisors).astype(np.float32),
            numbers=np.arange(math.prod(op.kernel), dtype=np.float32),
            winners=self.winners,
        )
        kernel = (_gradient_kernel if gradient else _kernel)(width, shape)
        return BoundKernel("pool", kernel, values, self.tuning, self._threads)

    def _tile_size(self, axis: Axis, channels: int, *, gradient: bool) -> tuple[int, int]:
        """Return the windows or strides of a tile at most, and the vectors of each pixel."""
        _, windows, taps, stride, _ = axis
        width, sums = self.tuning.width, SUMS[self.tuning.width]
        if gradient:
            vectors = _vectors(channels, width, MOST_COLUMNS // 2)
            most = MOST_COLUMNS if windows > 1 else MOST_WHOLE
            return max(1, most // vectors // stride), vectors
        several, pixels = sums // taps, (sums - taps) // stride
        if self._has_winners:
            several = pixels = (sums - taps) // 2
        vectors = _vectors(channels, width, several)
        return max(1, min(MOST_COLUMNS // stride, pixels)) if vectors == 1 else 1, vectors


def _vectors(channels: int, width: int, most: int) -> int:
    """Return the vectors of a pixel that are computed at a time: few times, little in vain."""
    counts = range(1, max(1, min(most, MOST_VECTORS, channels // width)) + 1)
    return min(counts, key=lambda count: math.ceil(channels / (count * width)) * (count + 2))


Pairs = list[tuple[int, int]]


def _rows(axes: Sequence[Axis], taps: int, *, gradient: bool) -> tuple[Pairs, Pairs]:
    """Return the tables of rows, of all axes but the last."""
    found: list[list[Pairs]] = []
    for size, windows, count, step, before in axes:
        over: list[Pairs] = [[] for _ in range(size if gradient else windows)]
        for window, tap in product(range(windows), range(count)):
            element = window * step - before + tap
            if 0 <= element < size:
                own, other = (element, window) if gradient else (window, element)
                over[own].append((other, tap))
        found.append(over)
    lines, rows = Pairs(), Pairs()
    for line in product(*found):
        begin = len(rows)
        for places in product(*line):
            row = tap = 0
            for (place, number), axis in zip(places, axes, strict=True):
                row, tap = row * axis[gradient] + place, tap * axis[2] + number
            rows.append((row, tap * taps))
        lines.append((begin * 2 * INT, len(rows) * 2 * INT))
    return lines, rows


def _tiles(axis: Axis, most: int, *, gradient: bool) -> tuple[int, Tiles]:
    """Return the number of windows, or of strides of a gradient, of a tile; and the tiles."""
    columns, windows, taps, stride, pad = axis
    count = math.ceil((columns + pad) / stride) if gradient else windows
    pixels = math.ceil(count / math.ceil(count / most))
    span = pixels * stride if gradient else (pixels - 1) * stride + taps
    before = (taps - 1) // stride  # windows that begin before a gradient's tile
    tiles: list[tuple[int, Inside]] = []
    for first in first_channels(count, pixels):
        seen: Inside = (inside(first * stride - pad, span, columns),)
        if gradient:
            seen = *seen, range(max(-first, -before), min(windows - first, pixels))
        tiles.append((first, seen))
    return pixels, Tiles(tuple(tiles))
