"""Local response normalisation across and within channels, and its gradient.

A row of an image, or a plane of a vector of channels, is gone through three times, while it is in
the caches. What neighbours are summed of, squares or the gradient's ratios, is written to memory
with zeros around it. Nothing is kept from forward to backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial, reduce
from typing import NamedTuple

import numpy as np

from demitasse.backends.kernels.bound import BoundKernel
from demitasse.backends.kernels.images import ImageFields, Images
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import (
    RUNTIME,
    Address,
    OptionalAddress,
    Output,
    Struct,
)
from demitasse.backends.kernels.language.values import FLOAT, Vector, Word, fma, root
from demitasse.backends.kernels.tuning import Tuning

BETA = 0.75
"""The exponent that kernels have: two square roots and a division."""

STACKS = 2
"""Rows that each thread has scratch memory for: squares, and ratios."""

WIDEST = 15
"""Pixels of the side of a window within a channel at most; kernels write its sums out."""


class ResponseFields(Struct):
    """A normalisation or its gradient; all images have the layout of ``x``."""

    x: ImageFields
    dy: OptionalAddress
    """The output's gradient."""
    y: Output
    """The output, or the input's gradient."""
    numbers: Address
    """Factor of the sums, what is added to them, and factor of the gradient."""
    scratch: Address
    """Across channels: each thread's pixels, with all channels and a vector before and behind them.
    Within: each thread's two planes, with rows of zeros above and below, and with columns of zeros
    on both sides."""


class _Spot(NamedTuple):
    """Places of a vector in a kernel.

    Attributes:
        at: Bytes from the beginning of the images.
        square, squares: Addresses of its square, and of the square whose neighbours are summed.
        ratio, ratios: The same of the gradient's ratio.
    """

    at: Word
    square: Word
    squares: Word
    ratio: Word
    ratios: Word


class _Region(NamedTuple):
    """A row or a plane in a kernel.

    Attributes:
        each_vector: Writes a loop over the vectors.
        total: Returns the sum of neighbours, given the address of a square or a ratio.
        add_down: Writes the sums of neighbours in other rows; None without any.
    """

    each_vector: Callable[[], AbstractContextManager[_Spot]]
    total: Callable[[Word], Vector]
    add_down: Callable[[], None] | None = None


@contextmanager
def _each_row(k: Kernel, f: ResponseFields, size: int) -> Iterator[_Region]:
    """Write a loop over the thread's rows, whose neighbours are channels."""
    x, (index, _) = f.x, k.thread()
    channel_bytes = x.channels * FLOAT
    pixel_bytes = channel_bytes + 2 * k.vector_bytes
    behind = x.columns * pixel_bytes
    scratch = f.scratch + index * behind * STACKS

    def total(place: Word) -> Vector:  # in the order of channels
        return reduce(
            Vector.__add__, [k.load(place + FLOAT * (i - size // 2)) for i in range(size)]
        )

    with k.parallel_loop(x.images, x.rows) as (image, row):
        first = (image * x.image_stride + row * x.row_stride) * FLOAT
        with k.loop(x.columns) as column:
            edge = scratch + column.i * pixel_bytes
            for place in (edge, edge + pixel_bytes - k.vector_bytes):
                k.store(k.constant(0.0), place)
                k.store(k.constant(0.0), place + behind)

        @contextmanager
        def each_vector() -> Iterator[_Spot]:
            with k.loop(x.columns) as column:
                start = first + column.i * x.column_stride * FLOAT
                here = scratch + column.i * pixel_bytes + k.vector_bytes
                with k.loop(channel_bytes, 0, k.vector_bytes) as vector:
                    square = here + vector.i
                    ratio = square + behind
                    yield _Spot(start + vector.i, square, square, ratio, ratio)

        yield _Region(each_vector, total)


@contextmanager
def _each_plane(k: Kernel, f: ResponseFields, size: int) -> Iterator[_Region]:
    """Write a loop over the thread's planes, whose neighbours are pixels.

    Addends are written to a plane with more rows, and their sums down to one with more columns.
    """
    x, half, (index, _) = f.x, size // 2, k.thread()
    high_row, wide_row = x.columns * k.vector_bytes, (x.columns + 2 * half) * k.vector_bytes
    high_bytes, wide_bytes = (x.rows + 2 * half) * high_row, x.rows * wide_row
    scratch = f.scratch + index * (high_bytes + wide_bytes)
    with k.loop(high_bytes + wide_bytes, 0, k.vector_bytes) as vector:
        k.store(k.constant(0.0), scratch + vector.i)
    # the first pixels that are not 0
    first_high, first_wide = scratch + high_row * half, scratch + high_bytes + half * k.vector_bytes

    def total(here: Word, step: Word) -> Vector:  # the nearest first
        found = k.load(here)
        for shift in range(1, half + 1):
            found = found + k.load(here - step * shift)
            found = found + k.load(here + step * shift)
        return found

    with k.parallel_loop(x.images, x.channels // k.width) as (image, group):
        first = image * x.image_stride * FLOAT + group * k.vector_bytes

        @contextmanager
        def each_vector() -> Iterator[_Spot]:
            with k.loop(x.rows) as row, k.loop(x.columns) as column:
                at = first + (row.i * x.row_stride + column.i * x.column_stride) * FLOAT
                right = column.i * k.vector_bytes
                high, wide = first_high + row.i * high_row, first_wide + row.i * wide_row
                yield _Spot(at, high + right, wide + right, high + right, wide + right)

        def add_down() -> None:
            with each_vector() as spot:
                k.store(total(spot.square, high_row), spot.squares)

        yield _Region(each_vector, partial(total, step=k.word(k.vector_bytes)), add_down)


@ResponseFields.kernel("local_response")
def _kernel(k: Kernel, f: ResponseFields, size: int, *, within: bool, gradient: bool) -> None:
    x, y = f.x.at, f.y
    rate, base, factor = (k.broadcast(f.numbers + FLOAT * place) for place in range(3))

    def normalized(value: Vector, scale: Vector) -> Vector:
        if within:
            return value / (root(scale) * root(root(scale)))
        inverse = 1.0 / root(scale)
        return value * (inverse * root(inverse))

    with (_each_plane if within else _each_row)(k, f, size) as region:
        with region.each_vector() as spot:
            value = k.load(x + spot.at)
            k.store(value * value, spot.square)
        if region.add_down:
            region.add_down()
        with region.each_vector() as spot:
            total, value = region.total(spot.squares), k.load(x + spot.at)
            scale = total * rate + base if within else fma(total, rate, base)
            if not gradient:
                k.store(normalized(value, scale), y + spot.at)
            else:
                dy = k.load(f.dy + spot.at)
                direct = normalized(dy, scale)
                k.store(direct, y + spot.at)
                ratio = dy * normalized(value, scale) if within else direct * value
                k.store(ratio / scale, spot.ratio)
        if gradient:
            if region.add_down:
                region.add_down()
            with region.each_vector() as spot:
                direct, value = k.load(y + spot.at), k.load(x + spot.at)
                total = region.total(spot.ratios)
                if within:
                    left = direct - total * value * factor
                else:
                    left = fma(-(total * factor), value, direct)
                k.store(left, y + spot.at)


def widest(width: int, *, within: bool) -> int:
    """Return the greatest size of windows."""
    return WIDEST if within else 2 * width + 1


def takes(images: Images, width: int, *, size: int, beta: float, within: bool) -> bool:
    """Return whether images have whole vectors of contiguous channels, and windows fit."""
    fits = beta == BETA and size <= widest(width, within=within)
    return fits and images.has_whole_vectors(width)


class LocalResponse:
    """y = x * (k + alpha / count * sum of squares of ``count`` neighbours) ** -0.75.

    Neighbours are ``size`` channels or, ``within`` a channel, ``size`` by ``size`` pixels.

    Attributes:
        forward: Takes x, y and scratch memory.
        backward: Takes x, dy, dx, which is other memory, and scratch memory.
    """

    def __init__(
        self, images: Images, size: int, alpha: float, k: float, tuning: Tuning, *, within: bool
    ) -> None:
        width, (_, channels, rows, columns) = tuning.width, images.shape
        if not takes(images, width, size=size, beta=BETA, within=within):
            message = (
                f"{channels} channels and windows of {size} were given; give whole vectors of "
                f"{width} with the channels last, and windows of {widest(width, within=within)} at "
                "most"
            )
            raise ValueError(message)
        rate, around = alpha / (size**2 if within else size), size // 2 * 2
        elements = STACKS * columns * (channels + 2 * width)
        if within:
            elements = width * ((rows + around) * columns + rows * (columns + around))
        name, numbers = "lrn" + " within" * within, np.array([rate, k, 2 * rate * BETA], np.float32)

        def bound(*, gradient: bool) -> BoundKernel:
            kernel = _kernel(width, size, within=within, gradient=gradient)
            dy = RUNTIME if gradient else None
            values = ResponseFields.values(x=ImageFields.of(images), dy=dy, numbers=numbers)
            return BoundKernel(name, kernel, values, tuning, scratch_size=tuning.threads * elements)

        self.forward, self.backward = bound(gradient=False), bound(gradient=True)
