"""Local response normalisation across channels, and its gradient. The vectors are channels.

A row of an image is gone through three times, while it is in the caches. What neighbours are summed
of, squares or the gradient's ratios, is written to memory with zeros on both sides, from where a
vector of neighbours is one load. Nothing is kept from forward to backward.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import compiled
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import (
    EACH_CALL,
    Address,
    Arguments,
    Output,
    Struct,
)
from demitasse.backends.kernels.language.words import FLOAT, Vector, Word, chunk, fma, root
from demitasse.backends.kernels.tuning import Tuning

__all__ = ["LocalResponse", "takes"]

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


class LocalResponse:
    """y = x * (k + alpha / size * sum of squares of ``size`` neighbours) ** -0.75.

    Args:
        images: Where the elements of input, output and gradients lie.
        size: Channels of a window, an odd number.
        alpha: The sums' factor, times ``size``.
        k: What is added to them.
        tuning: The kernels' vectors and threads.

    Attributes:
        scratch_size: Elements of scratch memory that a call takes.

    Raises:
        ValueError: Channels fill no whole vectors, or windows are too wide.
    """

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
        self._arguments = self._given(ForwardFields, "y"), self._given(BackwardFields, "dy", "dx")
        _, channels, _, columns = images.shape
        self.scratch_size = STACKS * tuning.threads * columns * (channels + 2 * width)

    def _given(self, fields: type[RowFields], *more: str) -> Arguments:
        images, (n, c, h, w) = self.images, self.images.shape
        values = fields.values(
            x=EACH_CALL,
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
            scratch=EACH_CALL,
            **dict.fromkeys(more, EACH_CALL),
        )
        return Arguments(values)

    def forward(self, source: np.ndarray, target: np.ndarray, scratch: np.ndarray) -> None:
        """Normalise.

        Args:
            source: The images.
            target: The output.
            scratch: At least :attr:`scratch_size` elements.
        """
        each = {"x": source, "y": target, "scratch": scratch}
        self._arguments[0].run(self._kernels[0], self.tuning.threads, each)

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
        each = {"x": source, "dy": dy, "dx": dx, "scratch": scratch}
        self._arguments[1].run(self._kernels[1], self.tuning.threads, each)

    @property
    def code(self) -> str:
        """Name of the code, with the processor's instructions."""
        return f"lrn llvm:{self.tuning.instructions}"
