"""Local response normalisation across and within channels, and pixels divided by their lengths.

A row of an image, or a plane of a vector of channels, is gone through three times, while it is in
the caches. What neighbours are summed of, squares or the gradient's ratios, is written to memory
with zeros around it. Nothing is kept from forward to backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial, reduce
from typing import ClassVar, NamedTuple

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.bound import BoundKernel, each_vector, load, store, threads_for
from demitasse.backends.kernels.image_fields import BlockFields
from demitasse.backends.kernels.images import Images, need_layout
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import (
    RUNTIME,
    Address,
    OptionalAddress,
    Output,
    Struct,
)
from demitasse.backends.kernels.language.values import (
    FLOAT,
    Condition,
    Vector,
    Word,
    chunk,
    fma,
    horizontal_sum,
    minimum,
    root,
)
from demitasse.backends.kernels.tuning import Tuning

BETA = 0.75
"""The exponent that kernels have: two square roots and a division."""

STACKS = 2
"""Rows that each thread has scratch memory for: squares, and ratios."""

WIDEST = 15
"""Pixels of the side of a window within a channel at most; kernels write its sums out."""


class ResponseFields(Struct):
    """A normalisation or its gradient; all images have the layout of ``x``."""

    x: BlockFields
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
    x, (index, threads) = f.x, k.thread()
    block_bytes = x.block_channels * FLOAT
    pixel_bytes = x.blocks * block_bytes + 2 * k.vector_bytes
    behind = x.columns * pixel_bytes
    scratch = f.scratch + index * behind * STACKS
    begin, end = chunk(x.images * x.rows, index, threads)

    def total(place: Word) -> Vector:  # in the order of channels
        return reduce(
            Vector.__add__, [k.load(place + FLOAT * (i - size // 2)) for i in range(size)]
        )

    with k.loop(end, begin) as line:
        image, row = line.i // x.rows, line.i % x.rows
        first = (image * x.image_stride + row * x.row_stride) * FLOAT
        with k.loop(x.columns) as column:
            edge = scratch + column.i * pixel_bytes
            for place in (edge, edge + pixel_bytes - k.vector_bytes):
                k.store(k.constant(0.0), place)
                k.store(k.constant(0.0), place + behind)

        @contextmanager
        def each_vector() -> Iterator[_Spot]:
            with k.loop(x.columns) as column, k.loop(x.blocks) as block:
                start = first + (column.i * x.column_stride + block.i * x.block_stride) * FLOAT
                here = scratch + column.i * pixel_bytes + block.i * block_bytes + k.vector_bytes
                with k.loop(block_bytes, 0, k.vector_bytes) as vector:
                    square = here + vector.i
                    ratio = square + behind
                    yield _Spot(start + vector.i, square, square, ratio, ratio)

        yield _Region(each_vector, total)


@contextmanager
def _each_plane(k: Kernel, f: ResponseFields, size: int) -> Iterator[_Region]:
    """Write a loop over the thread's planes, whose neighbours are pixels.

    Addends are written to a plane with more rows, and their sums down to one with more columns.
    """
    x, half, (index, threads) = f.x, size // 2, k.thread()
    high_row, wide_row = x.columns * k.vector_bytes, (x.columns + 2 * half) * k.vector_bytes
    high_bytes, wide_bytes = (x.rows + 2 * half) * high_row, x.rows * wide_row
    scratch = f.scratch + index * (high_bytes + wide_bytes)
    with k.loop(high_bytes + wide_bytes, 0, k.vector_bytes) as vector:
        k.store(k.constant(0.0), scratch + vector.i)
    # the first pixels that are not 0
    first_high, first_wide = scratch + high_row * half, scratch + high_bytes + half * k.vector_bytes
    block_vectors = x.block_channels // k.width
    vectors = x.blocks * block_vectors

    def total(here: Word, step: Word) -> Vector:  # the nearest first
        found = k.load(here)
        for shift in range(1, half + 1):
            found = found + k.load(here - step * shift)
            found = found + k.load(here + step * shift)
        return found

    begin, end = chunk(x.images * vectors, index, threads)
    with k.loop(end, begin) as plane:
        image, number = plane.i // vectors, plane.i % vectors
        start = image * x.image_stride + number // block_vectors * x.block_stride
        first = start * FLOAT + number % block_vectors * k.vector_bytes

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
        inverse = k.constant(1.0) / root(scale)
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
                direct, value, total = (
                    k.load(y + spot.at),
                    k.load(x + spot.at),
                    region.total(spot.ratios),
                )
                left = (
                    direct - total * value * factor
                    if within
                    else fma(-(total * factor), value, direct)
                )
                k.store(left, y + spot.at)


class Response:
    """y = x * (k + alpha / count * sum of squares of ``count`` neighbours) ** -0.75.

    Attributes:
        forward: Takes x, y and scratch memory.
        backward: Takes x, dy, dx, which is other memory, and scratch memory.
    """

    name: ClassVar[str]
    within: ClassVar[bool]

    @classmethod
    def widest(cls, width: int) -> int:
        """Return the greatest size of windows."""
        return WIDEST if cls.within else 2 * width + 1

    @classmethod
    def takes(cls, images: Images, size: int, beta: float, width: int) -> bool:
        """Return whether images have whole vectors of contiguous channels, and windows fit."""
        return images.has_whole_vectors(width) and beta == BETA and size <= cls.widest(width)

    def __init__(self, images: Images, size: int, alpha: float, k: float, tuning: Tuning) -> None:
        width, (_, channels, rows, columns) = tuning.width, images.shape
        if not self.takes(images, size, BETA, width):
            message = (
                f"{channels} channels in blocks of {images.block} and windows of {size} were given;"
                f" give whole vectors of {width}, and windows of {self.widest(width)} at most"
            )
            raise ValueError(message)
        rate, around = alpha / (size**2 if self.within else size), size // 2 * 2
        elements = STACKS * columns * (channels + 2 * width)
        if self.within:
            elements = width * ((rows + around) * columns + rows * (columns + around))
        numbers = np.array([rate, k, 2 * rate * BETA], np.float32)

        def bound(*, gradient: bool) -> BoundKernel:
            kernel = _kernel(width, size, within=self.within, gradient=gradient)
            dy = RUNTIME if gradient else None
            values = ResponseFields.values(x=BlockFields.of(images), dy=dy, numbers=numbers)
            scratch = tuning.threads * elements
            return BoundKernel(self.name, kernel, values, tuning, scratch_size=scratch)

        self.forward, self.backward = bound(gradient=False), bound(gradient=True)


class LocalResponse(Response):
    """Neighbours are ``size`` channels."""

    name, within = "lrn", False


class WithinResponse(Response):
    """Neighbours are ``size`` by ``size`` pixels of a channel."""

    name, within = "lrn within", True


FEWEST_EACH = 1 << 13
"""Elements of a thread at least."""


class L2NormalizeFields(Struct):
    """Images whose pixels follow each other; the results may be in the same memory."""

    x: BlockFields
    y: Output
    scales: Address
    """One scale for each channel."""
    eps: Address
    """Added to a sum of squares."""
    pixels: Word
    """Pixels of an image."""
    pixel_stride: Word


@L2NormalizeFields.kernel("lengths")
def _lengths_kernel(k: Kernel, f: L2NormalizeFields) -> None:
    """Write the kernel: roots and quotients are those of a vector of pixels."""
    width, x = k.width, f.x
    eps, one, sums = k.broadcast(f.eps), k.constant(1.0), k.scratch(1)
    block_bytes, pixel_bytes = x.block_stride * FLOAT, f.pixel_stride * FLOAT
    groups = (f.pixels + (width - 1)) // width
    begin, end = chunk(x.images * groups, *k.thread())
    with k.loop(end, begin) as group:
        image, first = group.i // groups, group.i % groups * width
        offset = (image * x.image_stride + first * f.pixel_stride) * FLOAT
        count = minimum(f.pixels - first, width)
        with k.loop(count) as pixel:
            source = x.at + offset + pixel.i * pixel_bytes
            with k.loop(x.blocks, vectors=[k.constant(0.0)]) as block:
                at = source + block.i * block_bytes

                def add(place: Word, some: Condition | None, total: Vector) -> list[Vector]:
                    value = load(k, at + place, some)
                    return [fma(value, value, total)]

                block.vectors = each_vector(k, x.block_channels, add, vectors=block.vectors)
            total = horizontal_sum(block.vectors[0])
            k.masked_store(total, sums + pixel.i * FLOAT, k.lane_mask(k.word(1)))
        k.store(one / root(k.load(sums) + eps), sums)
        with k.loop(count) as pixel, k.loop(x.blocks) as block:
            by = k.broadcast(sums + pixel.i * FLOAT)
            here = offset + pixel.i * pixel_bytes + block.i * block_bytes
            scales = f.scales + block.i * x.block_channels * FLOAT

            def scale(place: Word, some: Condition | None) -> None:
                unit = load(k, x.at + here + place, some) * by
                store(k, unit * load(k, scales + place, some), f.y + here + place, some)

            each_vector(k, x.block_channels, scale)


def takes_lengths(images: Images, width: int) -> bool:
    """Return whether images have contiguous channels, all of them or whole vectors, and pixels."""
    return images.has_runs(width) and images.is_even


class L2Normalize(BoundKernel):
    """y = s x / sqrt(sum of x^2 + eps), the sum over the channels of a pixel.

    A call takes x and y, which may be the same memory and lie as ``images`` says.

    Attributes:
        scales: One for each channel; to be filled before a call. Shape: (C,).
    """

    def __init__(self, images: Images, eps: float, tuning: Tuning) -> None:
        n, c, h, w = images.shape
        need_layout(takes_lengths(images, tuning.width), images)
        self.scales = aligned(c)
        values = L2NormalizeFields.values(
            x=BlockFields.of(images),
            scales=self.scales,
            eps=np.array([eps], np.float32),
            pixels=h * w,
            pixel_stride=images.column_stride if w > 1 else images.row_stride,
        )
        threads = threads_for(tuning, n * c * h * w, FEWEST_EACH)
        super().__init__("lengths", _lengths_kernel(tuning.width), values, tuning, threads)

    def take_scales(self, scales: np.ndarray) -> None:
        """Copy new scales: one for each channel, or one for all."""
        self.scales[...] = scales
