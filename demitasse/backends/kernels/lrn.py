"""Local response normalisation across and within channels.

A row of an image is gone through three times, while it is in the caches. What neighbours are summed
of, squares or the gradient's ratios, is written to memory with zeros on both sides, from where a
vector of neighbours is one load. Nothing is kept from forward to backward.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from demitasse.backends.kernels.image_fields import BlockFields
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Arguments, Output, Struct
from demitasse.backends.kernels.language.words import FLOAT, Vector, Word, chunk, fma, root
from demitasse.backends.kernels.tuning import TunedKernel, Tuning

BETA = 0.75
"""The exponent that kernels have: two square roots and a division."""

STACKS = 2
"""Rows that each thread has scratch memory for: squares, and ratios."""

WIDEST = 15
"""Pixels of the side of a window within a channel at most; kernels write its sums out."""


class ResponseFields(Struct):
    """A normalisation or its gradient; all images have the layout of ``x``."""

    x: BlockFields
    y: Output
    """The output, or the input's gradient."""
    dy: Address
    """The output's gradient; ``x`` if there is none."""
    numbers: Address
    """Factor of the sums, what is added to them, and factor of the gradient."""
    scratch: Address
    """Across channels: each thread's pixels, with all channels and a vector before and behind them.
    Within: each thread's two planes, with rows of zeros above and below, and with columns of zeros
    on both sides."""


class Response(TunedKernel):
    """Base of the kernels of a normalisation by neighbours, in both directions.

    The sums are multiplied by ``rate``, and ``k`` is added. All images have one layout. A call
    needs ``scratch_size`` elements of scratch memory.
    """

    scratch_size: int

    def __init__(
        self, images: Images, rate: float, k: float, kernels: tuple[int, int], tuning: Tuning
    ) -> None:
        self.tuning, self._kernels = tuning, kernels
        numbers = np.array([rate, k, 2 * rate * BETA], np.float32)
        self._arguments = Arguments(
            ResponseFields.values(x=BlockFields.of(images), numbers=numbers)
        )

    def forward(self, source: np.ndarray, target: np.ndarray, scratch: np.ndarray) -> None:
        """Normalise ``source``."""
        each = {"x.at": source, "y": target, "dy": source, "scratch": scratch}
        self._arguments.run(self._kernels[0], self.tuning.threads, each)

    def backward(
        self, source: np.ndarray, dy: np.ndarray, dx: np.ndarray, scratch: np.ndarray
    ) -> None:
        """Write the gradient of the input to ``dx``, which is other memory."""
        each = {"x.at": source, "y": dx, "dy": dy, "scratch": scratch}
        self._arguments.run(self._kernels[1], self.tuning.threads, each)


class _Row:
    """A row of an image in a kernel, and the scratch memory of its thread."""

    def __init__(self, k: Kernel, x: BlockFields, first: Word, scratch: Word) -> None:
        self._k, self._x, self._first, self._scratch = k, x, first, scratch

    @contextmanager
    def each_vector(self) -> Iterator[tuple[Word, Word]]:
        """Write a loop over vectors: bytes from the first image, and the place in the scratch."""
        k, x = self._k, self._x
        block_bytes = x.block_channels * FLOAT
        pixel_bytes = _pixel_bytes(k, x)
        with k.loop(x.columns) as column:
            pixel = self._first + column.i * x.column_stride * FLOAT
            place = self._scratch + column.i * pixel_bytes + k.vector_bytes
            with k.loop(x.blocks) as block:
                start = pixel + block.i * x.block_stride * FLOAT
                here = place + block.i * block_bytes
                with k.loop(block_bytes, 0, k.vector_bytes) as vector:
                    yield start + vector.i, here + vector.i

    def clear(self, none: Vector, behind: Word) -> None:
        """Write zeros before and behind the channels of all pixels, here and so far behind."""
        k, pixel_bytes = self._k, _pixel_bytes(self._k, self._x)
        with k.loop(self._x.columns) as column:
            begin = self._scratch + column.i * pixel_bytes
            for edge in (begin, begin + pixel_bytes - k.vector_bytes):
                k.store(none, edge)
                k.store(none, edge + behind)


@contextmanager
def _each_row(k: Kernel, f: ResponseFields) -> Iterator[_Row]:
    x, (index, threads) = f.x, k.thread()
    begin, end = chunk(x.images * x.rows, index, threads)
    scratch = f.scratch + index * (x.columns * _pixel_bytes(k, x)) * STACKS
    with k.loop(end, begin) as line:
        image, row = line.i // x.rows, line.i % x.rows
        first = (image * x.image_stride + row * x.row_stride) * FLOAT
        yield _Row(k, x, first, scratch)


def _pixel_bytes(k: Kernel, x: BlockFields) -> Word:
    return x.blocks * x.block_channels * FLOAT + 2 * k.vector_bytes


def _sum(k: Kernel, place: Word, size: int) -> Vector:
    """Return the sums of neighbours, in the order of channels."""
    total, *others = (k.load(place + FLOAT * (i - size // 2)) for i in range(size))
    for other in others:
        total = total + other
    return total


@ResponseFields.kernel("local_response")
def _kernel(k: Kernel, f: ResponseFields, size: int) -> None:
    """Write the kernel for windows of ``size`` channels."""
    rate, base, _ = _numbers(k, f)
    with _each_row(k, f) as row:
        _square(k, f, row, k.word(0))
        with row.each_vector() as (at, place):
            scale = fma(_sum(k, place, size), rate, base)
            k.store(k.load(f.x.at + at) * _power(k, scale), f.y + at)


@ResponseFields.kernel("local_response_gradient")
def _gradient_kernel(k: Kernel, f: ResponseFields, size: int) -> None:
    rate, base, factor = _numbers(k, f)
    behind = f.x.columns * _pixel_bytes(k, f.x)
    with _each_row(k, f) as row:
        _square(k, f, row, behind)
        with row.each_vector() as (at, place):
            scale = fma(_sum(k, place, size), rate, base)
            direct = k.load(f.dy + at) * _power(k, scale)
            k.store(direct, f.y + at)
            k.store(direct * k.load(f.x.at + at) / scale, place + behind)
        with row.each_vector() as (at, place):
            shared = _sum(k, place + behind, size) * factor
            k.store(fma(-shared, k.load(f.x.at + at), k.load(f.y + at)), f.y + at)


def _square(k: Kernel, f: ResponseFields, row: _Row, behind: Word) -> None:
    """Write the squares of a row, between zeros."""
    row.clear(k.constant(0.0), behind)
    with row.each_vector() as (at, place):
        x = k.load(f.x.at + at)
        k.store(x * x, place)


def _numbers(k: Kernel, f: ResponseFields) -> list[Vector]:
    return [k.broadcast(f.numbers + FLOAT * place) for place in range(3)]


def _power(k: Kernel, scale: Vector) -> Vector:
    inverse = k.constant(1.0) / root(scale)
    return inverse * root(inverse)


def takes(images: Images, size: int, beta: float, width: int) -> bool:
    """Return whether images have whole vectors of contiguous channels, and windows are no wider.

    Windows have an odd ``size`` of channels.
    """
    return images.has_whole_vectors(width) and beta == BETA and size // 2 <= width


class LocalResponse(Response):
    """y = x * (k + alpha / size * sum of squares of ``size`` neighbours) ** -0.75."""

    kernel = "lrn"

    def __init__(self, images: Images, size: int, alpha: float, k: float, tuning: Tuning) -> None:
        _check(takes, images, size, 2 * tuning.width + 1, tuning)
        kernels = _kernel(tuning.width, size), _gradient_kernel(tuning.width, size)
        super().__init__(images, alpha / size, k, kernels, tuning)
        _, channels, _, columns = images.shape
        self.scratch_size = STACKS * tuning.threads * columns * (channels + 2 * tuning.width)


def _check(
    takes: Callable[[Images, int, float, int], bool], images: Images, size: int, widest: int,
    tuning: Tuning,
) -> None:  # fmt: skip
    """Raise ValueError if a normalisation does not take images or windows."""
    if not takes(images, size, BETA, tuning.width):
        message = (
            f"{images.shape[1]} channels in blocks of {images.block} and windows of {size} were "
            f"given; give whole vectors of {tuning.width}, and windows of {widest} at most"
        )
        raise ValueError(message)


class _Planes(NamedTuple):
    """A thread's planes with more rows and with more columns.

    Attributes:
        high, wide: Addresses of the first pixels that are not 0.
        high_row, wide_row: Bytes from one row to the next.
    """

    high: Word
    wide: Word
    high_row: Word
    wide_row: Word


@ResponseFields.kernel("within_response")
def _within_kernel(k: Kernel, f: ResponseFields, size: int) -> None:
    """Write the kernel for windows of ``size`` by ``size`` pixels."""
    planes = _planes(k, f, size)
    with _each_plane(k, f.x) as first:
        _square_within(k, f, planes, first)
        _add_down(k, f, planes, size)
        with _each_pixel(k, f.x) as (row, column):
            at = first + _place(f.x, row, column)
            scale = _scale(k, f, _across(k, planes, row, column, size))
            k.store(k.load(f.x.at + at) / _root(scale), f.y + at)


@ResponseFields.kernel("within_response_gradient")
def _within_gradient_kernel(k: Kernel, f: ResponseFields, size: int) -> None:
    factor = k.broadcast(f.numbers + 2 * FLOAT)
    planes = _planes(k, f, size)
    with _each_plane(k, f.x) as first:
        _square_within(k, f, planes, first)
        _add_down(k, f, planes, size)
        with _each_pixel(k, f.x) as (row, column):
            at = first + _place(f.x, row, column)
            scale = _scale(k, f, _across(k, planes, row, column, size))
            power, dy = _root(scale), k.load(f.dy + at)
            ratio = dy * (k.load(f.x.at + at) / power) / scale
            k.store(dy / power, f.y + at)
            k.store(ratio, planes.high + row * planes.high_row + column * k.vector_bytes)
        _add_down(k, f, planes, size)
        with _each_pixel(k, f.x) as (row, column):
            at = first + _place(f.x, row, column)
            shared = _across(k, planes, row, column, size) * k.load(f.x.at + at) * factor
            k.store(k.load(f.y + at) - shared, f.y + at)


def _planes(k: Kernel, f: ResponseFields, size: int) -> _Planes:
    """Return the thread's planes, with zeros around them."""
    half = size // 2
    index, _ = k.thread()
    rows, columns = f.x.rows, f.x.columns
    high_row, wide_row = columns * k.vector_bytes, (columns + 2 * half) * k.vector_bytes
    high_bytes, wide_bytes = (rows + 2 * half) * high_row, rows * wide_row
    begin = f.scratch + index * (high_bytes + wide_bytes)
    none = k.constant(0.0)
    with k.loop(high_bytes + wide_bytes, 0, k.vector_bytes) as vector:
        k.store(none, begin + vector.i)
    wide = begin + high_bytes + half * k.vector_bytes
    return _Planes(begin + high_row * half, wide, high_row, wide_row)


@contextmanager
def _each_plane(k: Kernel, x: BlockFields) -> Iterator[Word]:
    """Write a loop over the thread's planes: bytes from the first image."""
    block_vectors = x.block_channels // k.width
    vectors = x.blocks * block_vectors
    begin, end = chunk(x.images * vectors, *k.thread())
    with k.loop(end, begin) as plane:
        image, vector = plane.i // vectors, plane.i % vectors
        block, inner = vector // block_vectors, vector % block_vectors
        start = image * x.image_stride + block * x.block_stride
        yield start * FLOAT + inner * k.vector_bytes


@contextmanager
def _each_pixel(k: Kernel, x: BlockFields) -> Iterator[tuple[Word, Word]]:
    with k.loop(x.rows) as row, k.loop(x.columns) as column:
        yield row.i, column.i


def _place(x: BlockFields, row: Word, column: Word) -> Word:
    return (row * x.row_stride + column * x.column_stride) * FLOAT


def _square_within(k: Kernel, f: ResponseFields, planes: _Planes, first: Word) -> None:
    with _each_pixel(k, f.x) as (row, column):
        x = k.load(f.x.at + first + _place(f.x, row, column))
        k.store(x * x, planes.high + row * planes.high_row + column * k.vector_bytes)


def _add_down(k: Kernel, f: ResponseFields, planes: _Planes, size: int) -> None:
    """Write the sums of each pixel's neighbours above and below."""
    with _each_pixel(k, f.x) as (row, column):
        right = column * k.vector_bytes
        here = planes.high + row * planes.high_row + right
        total = _sum_of_neighbours(k, here, planes.high_row, size)
        k.store(total, planes.wide + row * planes.wide_row + right)


def _across(k: Kernel, planes: _Planes, row: Word, column: Word, size: int) -> Vector:
    """Return the sum of those on both sides."""
    here = planes.wide + row * planes.wide_row + column * k.vector_bytes
    return _sum_of_neighbours(k, here, k.word(k.vector_bytes), size)


def _sum_of_neighbours(k: Kernel, here: Word, step: Word, size: int) -> Vector:
    """Return the sum of a vector and its neighbours, the nearest first."""
    total = k.load(here)
    for shift in range(1, size // 2 + 1):
        total = total + k.load(here - step * shift)
        total = total + k.load(here + step * shift)
    return total


def _scale(k: Kernel, f: ResponseFields, total: Vector) -> Vector:
    return total * k.broadcast(f.numbers) + k.broadcast(f.numbers + FLOAT)


def _root(scale: Vector) -> Vector:
    one = root(scale)
    return one * root(one)


def takes_within(images: Images, size: int, beta: float, width: int) -> bool:
    """Return whether images have whole vectors of contiguous channels, and windows are no wider.

    Windows have an odd ``size`` of rows and columns.
    """
    return images.has_whole_vectors(width) and beta == BETA and size <= WIDEST


class WithinResponse(Response):
    """y = x * (k + alpha / size^2 * sum of squares of ``size`` by ``size`` pixels) ** -0.75."""

    kernel = "lrn within"

    def __init__(self, images: Images, size: int, alpha: float, k: float, tuning: Tuning) -> None:
        _check(takes_within, images, size, WIDEST, tuning)
        width, (_, _, rows, columns) = tuning.width, images.shape
        kernels = _within_kernel(width, size), _within_gradient_kernel(width, size)
        super().__init__(images, alpha / size**2, k, kernels, tuning)
        around = size // 2 * 2
        planes = (rows + around) * columns + rows * (columns + around)
        self.scratch_size = tuning.threads * width * planes
