"""Local response normalisation across and within channels.

A row of an image is gone through three times, while it is in the caches. What neighbours are summed
of, squares or the gradient's ratios, is written to memory with zeros on both sides, from where a
vector of neighbours is one load. Nothing is kept from forward to backward.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import compiled
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import (
    RUNTIME,
    Address,
    Arguments,
    Output,
    Struct,
)
from demitasse.backends.kernels.language.words import FLOAT, Vector, Word, chunk, fma, root
from demitasse.backends.kernels.tuning import TunedKernel, Tuning

BETA = 0.75
"""The exponent that kernels have: two square roots and a division."""


STACKS = 2
"""Rows that each thread has scratch memory for: squares, and ratios."""


class RowFields(Struct):
    """Images that are gone through row by row."""

    x: Address
    """Address of the first image."""
    images: Word
    """Number of images."""
    blocks: Word
    """Blocks of contiguous channels of an image."""
    rows: Word
    """Rows of an image."""
    columns: Word
    """Columns of an image."""
    block_channels: Word
    """Channels of a block, whole vectors of them."""
    image_stride: Word
    """Elements from one image to the next."""
    block_stride: Word
    """Elements from one block to the next."""
    row_stride: Word
    """Elements from one row to the next."""
    column_stride: Word
    """Elements from one column to the next."""
    numbers: Address
    """Address of the sums' factor, what is added to them, and the gradient's factor."""
    scratch: Address
    """Address of each thread's pixels: all channels, and a vector before and behind them."""


class ForwardFields(RowFields):
    """The normalisation."""

    y: Output
    """Address of the first output, which lies as the image does."""


class BackwardFields(RowFields):
    """The gradient."""

    dy: Address
    """Address of the first gradient of the output; all lie alike."""
    dx: Output
    """Address of the first gradient of the input."""


@cache
def _kernel(width: int, size: int, *, backward: bool) -> int:
    """Return the address of the kernel for windows of ``size`` channels."""
    name = f"local_response{'_gradient' if backward else ''}{width}x{size}"
    write = _write_gradient if backward else _write
    return compiled(name, lambda module: write(module, name, width, size), name)[name]


class _Row:
    """A row of an image in a kernel, and the scratch memory of its thread."""

    def __init__(self, k: Kernel, f: RowFields, first: Word, scratch: Word) -> None:
        self._k, self._f, self._first, self._scratch = k, f, first, scratch

    @contextmanager
    def each_vector(self) -> Iterator[tuple[Word, Word]]:
        """Write a loop over vectors: bytes from the first image, and the place in the scratch."""
        k, f = self._k, self._f
        block_bytes = f.block_channels * FLOAT
        pixel_bytes = _pixel_bytes(k, f)
        with k.loop(f.columns) as column:
            pixel = self._first + column.i * f.column_stride * FLOAT
            place = self._scratch + column.i * pixel_bytes + k.vector_bytes
            with k.loop(f.blocks) as block:
                start, here = (
                    pixel + block.i * f.block_stride * FLOAT,
                    place + block.i * block_bytes,
                )
                with k.loop(block_bytes, 0, k.vector_bytes) as vector:
                    yield start + vector.i, here + vector.i

    def clear(self, none: Vector, behind: Word) -> None:
        """Write zeros before and behind the channels of all pixels, here and so far behind."""
        k, f = self._k, self._f
        pixel_bytes = _pixel_bytes(k, f)
        with k.loop(f.columns) as column:
            begin = self._scratch + column.i * pixel_bytes
            for edge in (begin, begin + pixel_bytes - k.vector_bytes):
                k.store(none, edge)
                k.store(none, edge + behind)


@contextmanager
def _each_row(k: Kernel, f: RowFields) -> Iterator[_Row]:
    """Write a loop over the thread's rows."""
    index, threads = k.thread()
    begin, end = chunk(f.images * f.rows, index, threads)
    scratch = f.scratch + index * _stack_bytes(k, f) * STACKS
    with k.loop(end, begin) as line:
        image, row = line.i // f.rows, line.i % f.rows
        first = (image * f.image_stride + row * f.row_stride) * FLOAT
        yield _Row(k, f, first, scratch)


def _pixel_bytes(k: Kernel, f: RowFields) -> Word:
    return f.blocks * f.block_channels * FLOAT + 2 * k.vector_bytes


def _stack_bytes(k: Kernel, f: RowFields) -> Word:
    return f.columns * _pixel_bytes(k, f)


def _sum(k: Kernel, place: Word, size: int) -> Vector:
    """Return the sums of neighbours, in the order of channels."""
    total, *others = (k.load(place + FLOAT * (i - size // 2)) for i in range(size))
    for other in others:
        total = total + other
    return total


def _write(module: Any, name: str, width: int, size: int) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    f = ForwardFields.read(k)
    rate, base, _ = _numbers(k, f)
    with _each_row(k, f) as row:
        _square(k, f, row, k.word(0))
        with row.each_vector() as (at, place):
            scale = fma(_sum(k, place, size), rate, base)
            k.store(k.load(f.x + at) * _power(k, scale), f.y + at)
    k.done()


def _write_gradient(module: Any, name: str, width: int, size: int) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    f = BackwardFields.read(k)
    rate, base, factor = _numbers(k, f)
    behind = _stack_bytes(k, f)
    with _each_row(k, f) as row:
        _square(k, f, row, behind)
        with row.each_vector() as (at, place):
            scale = fma(_sum(k, place, size), rate, base)
            direct = k.load(f.dy + at) * _power(k, scale)
            k.store(direct, f.dx + at)
            k.store(direct * k.load(f.x + at) / scale, place + behind)
        with row.each_vector() as (at, place):
            shared = _sum(k, place + behind, size) * factor
            k.store(fma(-shared, k.load(f.x + at), k.load(f.dx + at)), f.dx + at)
    k.done()


def _square(k: Kernel, f: RowFields, row: _Row, behind: Word) -> None:
    """Write the squares of a row, between zeros."""
    row.clear(k.constant(0.0), behind)
    with row.each_vector() as (at, place):
        x = k.load(f.x + at)
        k.store(x * x, place)


def _numbers(k: Kernel, f: RowFields) -> list[Vector]:
    return [k.broadcast(f.numbers + FLOAT * place) for place in range(3)]


def _power(k: Kernel, scale: Vector) -> Vector:
    """Return scale ** -0.75."""
    inverse = k.constant(1.0) / root(scale)
    return inverse * root(inverse)


def takes(images: Images, size: int, beta: float, width: int) -> bool:
    """Return whether images have whole vectors of contiguous channels, and windows are no wider.

    Args:
        images: Where all elements lie.
        size: Channels of a window, an odd number.
        beta: The exponent.
        width: Floats of a vector; 0 where there are no kernels.
    """
    whole = bool(width) and images.fits(width) and images.block % width == 0
    return whole and beta == BETA and size // 2 <= width


class Response(TunedKernel):
    """The kernels of a normalisation by neighbours, in both directions.

    Attributes:
        scratch_size: Elements of scratch memory for a call.
    """

    scratch_size: int

    @abstractmethod
    def forward(self, source: np.ndarray, target: np.ndarray, scratch: np.ndarray) -> None:
        """Normalise.

        Args:
            source: The images.
            target: The output.
            scratch: At least :attr:`scratch_size` elements.
        """

    @abstractmethod
    def backward(
        self, source: np.ndarray, dy: np.ndarray, dx: np.ndarray, scratch: np.ndarray
    ) -> None:
        """Write the gradient of the input.

        Args:
            source: The images.
            dy: The gradient of the output.
            dx: For that of the input; other memory.
            scratch: At least :attr:`scratch_size` elements.
        """


class LocalResponse(Response):
    """y = x * (k + alpha / size * sum of squares of ``size`` neighbours) ** -0.75.

    Args:
        images: Where the elements of input, output and gradients lie.
        size: Channels of a window, an odd number.
        alpha: The sums' factor, times ``size``.
        k: What is added to them.
        tuning: The kernels' vectors and threads.

    Raises:
        ValueError: Channels fill no whole vectors, or windows are too wide.
    """

    kernel = "lrn"

    def __init__(self, images: Images, size: int, alpha: float, k: float, tuning: Tuning) -> None:
        width = tuning.width
        if not takes(images, size, BETA, width):
            message = (
                f"{images.shape[1]} channels in blocks of {images.block} and windows of {size} "
                f"were given; give whole vectors of {width}, and windows of {2 * width + 1} at most"
            )
            raise ValueError(message)
        self.images, self.tuning = images, tuning
        rate = alpha / size
        self._numbers = np.array([rate, k, 2 * rate * BETA], np.float32)
        self._kernels = tuple(_kernel(width, size, backward=way) for way in (False, True))
        self._arguments = (
            self._make_arguments(ForwardFields, "y"),
            self._make_arguments(BackwardFields, "dy", "dx"),
        )
        _, channels, _, columns = images.shape
        self.scratch_size = STACKS * tuning.threads * columns * (channels + 2 * width)

    def _make_arguments(self, fields: type[RowFields], *more: str) -> Arguments:
        images, (n, c, h, w) = self.images, self.images.shape
        values = fields.values(
            x=RUNTIME,
            images=n,
            blocks=c // images.block,
            rows=h,
            columns=w,
            block_channels=images.block,
            image_stride=images.image_stride,
            block_stride=images.block_stride,
            row_stride=images.row_stride,
            column_stride=images.column_stride,
            numbers=self._numbers,
            scratch=RUNTIME,
            **dict.fromkeys(more, RUNTIME),
        )
        return Arguments(values)

    def forward(self, source: np.ndarray, target: np.ndarray, scratch: np.ndarray) -> None:
        each = {"x": source, "y": target, "scratch": scratch}
        self._arguments[0].run(self._kernels[0], self.tuning.threads, each)

    def backward(
        self, source: np.ndarray, dy: np.ndarray, dx: np.ndarray, scratch: np.ndarray
    ) -> None:
        each = {"x": source, "dy": dy, "dx": dx, "scratch": scratch}
        self._arguments[1].run(self._kernels[1], self.tuning.threads, each)


WIDEST = 15
"""Pixels of a window's side at most, for the kernels write its sums out."""


class PlaneFields(Struct):
    """Images whose planes are gone through one by one."""

    x: Address
    """Address of the first image."""
    y: Output
    """Address of the first output, or of the gradient of the first input; all lie alike."""
    dy: Address
    """Address of the first output's gradient; that of the image where there is none."""
    images: Word
    """Number of images."""
    blocks: Word
    """Blocks of contiguous channels of an image."""
    block_vectors: Word
    """Vectors of a block."""
    rows: Word
    """Rows of an image."""
    columns: Word
    """Columns of an image."""
    image_stride: Word
    """Elements from one image to the next."""
    block_stride: Word
    """Elements from one block to the next."""
    row_stride: Word
    """Elements from one row to the next."""
    column_stride: Word
    """Elements from one column to the next."""
    numbers: Address
    """Address of the sums' factor, what is added to them, and the gradient's factor."""
    scratch: Address
    """Address of each thread's planes: one with rows of zeros above and below, and one with columns
    of zeros on both sides."""


class _Planes(NamedTuple):
    """A thread's planes.

    Attributes:
        high: Address of the one with more rows; its first pixel that is not 0.
        wide: The same of the one with more columns.
        high_row: Bytes from a row of the first to the next.
        wide_row: The same of the second.
    """

    high: Word
    wide: Word
    high_row: Word
    wide_row: Word


@cache
def _lrn_within_kernel(width: int, size: int, *, backward: bool) -> int:
    """Return the address of the kernel for windows of ``size`` by ``size`` pixels."""
    name = f"within_response{'_gradient' if backward else ''}{width}x{size}"
    write = _lrn_within_write_gradient if backward else _lrn_within_write
    return compiled(name, lambda module: write(module, name, width, size), name)[name]


def _lrn_within_write(module: Any, name: str, width: int, size: int) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    f = PlaneFields.read(k)
    planes = _planes(k, f, size)
    with _each_plane(k, f) as first:
        _lrn_within_square(k, f, planes, first)
        _add_down(k, f, planes, size)
        with _each_pixel(k, f) as (row, column):
            at = first + _place(f, row, column)
            scale = _scale(k, f, _across(k, planes, row, column, size))
            k.store(k.load(f.x + at) / _root(scale), f.y + at)
    k.done()


def _lrn_within_write_gradient(module: Any, name: str, width: int, size: int) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    f = PlaneFields.read(k)
    factor = k.broadcast(f.numbers + 2 * FLOAT)
    planes = _planes(k, f, size)
    with _each_plane(k, f) as first:
        _lrn_within_square(k, f, planes, first)
        _add_down(k, f, planes, size)
        with _each_pixel(k, f) as (row, column):
            at = first + _place(f, row, column)
            scale = _scale(k, f, _across(k, planes, row, column, size))
            power, dy = _root(scale), k.load(f.dy + at)
            ratio = dy * (k.load(f.x + at) / power) / scale
            k.store(dy / power, f.y + at)
            k.store(ratio, planes.high + row * planes.high_row + column * k.vector_bytes)
        _add_down(k, f, planes, size)
        with _each_pixel(k, f) as (row, column):
            at = first + _place(f, row, column)
            shared = _across(k, planes, row, column, size) * k.load(f.x + at) * factor
            k.store(k.load(f.y + at) - shared, f.y + at)
    k.done()


def _planes(k: Kernel, f: PlaneFields, size: int) -> _Planes:
    """Return the thread's planes, with zeros around them."""
    half = size // 2
    index, _ = k.thread()
    high_row, wide_row = f.columns * k.vector_bytes, (f.columns + 2 * half) * k.vector_bytes
    high_bytes, wide_bytes = (f.rows + 2 * half) * high_row, f.rows * wide_row
    begin = f.scratch + index * (high_bytes + wide_bytes)
    none = k.constant(0.0)
    with k.loop(high_bytes + wide_bytes, 0, k.vector_bytes) as vector:
        k.store(none, begin + vector.i)
    wide = begin + high_bytes + half * k.vector_bytes
    return _Planes(begin + high_row * half, wide, high_row, wide_row)


@contextmanager
def _each_plane(k: Kernel, f: PlaneFields) -> Iterator[Word]:
    """Write a loop over the thread's planes: bytes from the first image."""
    vectors = f.blocks * f.block_vectors
    begin, end = chunk(f.images * vectors, *k.thread())
    with k.loop(end, begin) as plane:
        image, vector = plane.i // vectors, plane.i % vectors
        block, inner = vector // f.block_vectors, vector % f.block_vectors
        start = image * f.image_stride + block * f.block_stride
        yield start * FLOAT + inner * k.vector_bytes


@contextmanager
def _each_pixel(k: Kernel, f: PlaneFields) -> Iterator[tuple[Word, Word]]:
    """Write a loop over rows and columns."""
    with k.loop(f.rows) as row, k.loop(f.columns) as column:
        yield row.i, column.i


def _place(f: PlaneFields, row: Word, column: Word) -> Word:
    return (row * f.row_stride + column * f.column_stride) * FLOAT


def _lrn_within_square(k: Kernel, f: PlaneFields, planes: _Planes, first: Word) -> None:
    """Write the squares of a plane."""
    with _each_pixel(k, f) as (row, column):
        x = k.load(f.x + first + _place(f, row, column))
        k.store(x * x, planes.high + row * planes.high_row + column * k.vector_bytes)


def _add_down(k: Kernel, f: PlaneFields, planes: _Planes, size: int) -> None:
    """Write the sums of each pixel's neighbours above and below."""
    with _each_pixel(k, f) as (row, column):
        right = column * k.vector_bytes
        total = _lrn_within_sum(
            k, planes.high + row * planes.high_row + right, planes.high_row, size
        )
        k.store(total, planes.wide + row * planes.wide_row + right)


def _across(k: Kernel, planes: _Planes, row: Word, column: Word, size: int) -> Vector:
    """Return the sum of those on both sides."""
    here = planes.wide + row * planes.wide_row + column * k.vector_bytes
    return _lrn_within_sum(k, here, k.word(k.vector_bytes), size)


def _lrn_within_sum(k: Kernel, here: Word, step: Word, size: int) -> Vector:
    """Return the sum of a vector and its neighbours, the nearest first."""
    total = k.load(here)
    for shift in range(1, size // 2 + 1):
        total = total + k.load(here - step * shift)
        total = total + k.load(here + step * shift)
    return total


def _scale(k: Kernel, f: PlaneFields, total: Vector) -> Vector:
    return total * k.broadcast(f.numbers) + k.broadcast(f.numbers + FLOAT)


def _root(scale: Vector) -> Vector:
    """Return scale ** 0.75."""
    one = root(scale)
    return one * root(one)


def takes_within(images: Images, size: int, beta: float, width: int) -> bool:
    """Return whether images have whole vectors of contiguous channels, and windows are no wider.

    Args:
        images: Where all elements lie.
        size: Pixels of a window's side, an odd number.
        beta: The exponent.
        width: Floats of a vector; 0 where there are no kernels.
    """
    whole = bool(width) and images.fits(width) and images.block % width == 0
    return whole and beta == BETA and size <= WIDEST


class WithinResponse(Response):
    """y = x * (k + alpha / size^2 * sum of squares of ``size`` by ``size`` pixels) ** -0.75.

    Args:
        images: Where the elements of input, output and gradients lie.
        size: Pixels of a window's side, an odd number.
        alpha: The sums' factor, times ``size`` squared.
        k: What is added to them.
        tuning: The kernels' vectors and threads.

    Raises:
        ValueError: Channels fill no whole vectors, or windows are too wide.
    """

    kernel = "lrn within"

    def __init__(self, images: Images, size: int, alpha: float, k: float, tuning: Tuning) -> None:
        width = tuning.width
        if not takes_within(images, size, BETA, width):
            message = (
                f"{images.shape[1]} channels in blocks of {images.block} and windows of {size} "
                f"were given; give whole vectors of {width}, and windows of {WIDEST} at most"
            )
            raise ValueError(message)
        self.tuning = tuning
        rate = alpha / size**2
        n, c, h, w = images.shape
        self._kernels = tuple(
            _lrn_within_kernel(width, size, backward=way) for way in (False, True)
        )
        self._arguments = Arguments(
            PlaneFields.values(
                x=RUNTIME,
                y=RUNTIME,
                dy=RUNTIME,
                images=n,
                blocks=c // images.block,
                block_vectors=images.block // width,
                rows=h,
                columns=w,
                image_stride=images.image_stride,
                block_stride=images.block_stride,
                row_stride=images.row_stride,
                column_stride=images.column_stride,
                numbers=np.array([rate, k, 2 * rate * BETA], np.float32),
                scratch=RUNTIME,
            )
        )
        around = size // 2 * 2
        self.scratch_size = tuning.threads * width * ((h + around) * w + h * (w + around))

    def forward(self, source: np.ndarray, target: np.ndarray, scratch: np.ndarray) -> None:
        each = {"x": source, "y": target, "dy": source, "scratch": scratch}
        self._arguments.run(self._kernels[0], self.tuning.threads, each)

    def backward(
        self, source: np.ndarray, dy: np.ndarray, dx: np.ndarray, scratch: np.ndarray
    ) -> None:
        each = {"x": source, "y": dx, "dy": dy, "scratch": scratch}
        self._arguments.run(self._kernels[1], self.tuning.threads, each)
