"""The gradients of the filters and the bias of a pointwise convolution.

The filters' gradient is the product of two matrices whose rows are pixels: the transposed input and
the gradient of the output. Sums stay in registers over a few pixels. Their part of a panel of
filters fits into a core's first cache while it is multiplied with every channel. The forward pass
wrote the input long ago, so the kernel prefetches the next pixels; oneDNN's code does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import compiled
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import (
    RUNTIME,
    Address,
    Arguments,
    OptionalAddress,
    Output,
    Struct,
)
from demitasse.backends.kernels.language.words import (
    FLOAT,
    INT,
    Vector,
    Word,
    choose,
    chunk,
    minimum,
)
from demitasse.backends.kernels.products import WIDEST, multiply, split_columns
from demitasse.backends.kernels.tuning import TunedKernel, Tuning

ROWS = {4: 4, 8: 4, 16: 8}
"""Floats of a vector -> channels whose sums are in registers, with those of a panel of filters."""

PIXELS = 128
"""Approximate number of pixels over which sums stay in registers."""

COLUMNS = 1 + 2 * WIDEST
"""Integers of an entry of the table of panels."""

MOST_FILTERS = 192
"""Up to how many it pays to fetch an input, of which each number is multiplied with so many."""

FEWEST_ROWS = 3
"""Times the registers' channels for each thread, from which on threads are done together."""


def gradient_pays(x: tuple[int, ...], y: tuple[int, ...], tuning: Tuning) -> bool:
    """Return whether the library takes longer than our kernel.

    Args:
        x: The input's shape, (N, C, H, W).
        y: The output's.
        tuning: The kernel's vectors and threads.
    """
    rows = x[1] // ROWS[tuning.width]
    return y[1] <= min(MOST_FILTERS, 2 * x[1]) and rows >= FEWEST_ROWS * tuning.threads


class PointwiseGradientFields(Struct):
    """The gradients of filters and bias; images lie in blocks of a vector's channels."""

    x: Address
    """Address of the first pixel of the input."""
    x_image_stride: Word
    """Elements from one of its images to the next."""
    x_block_stride: Word
    """Elements from one of its blocks of channels to the next."""
    dy: Address
    """Address of the first pixel of the output's gradient."""
    dy_image_stride: Word
    """Elements from one of its images to the next."""
    filters: Output
    """Address of the filters' gradient, which is written."""
    bias: OptionalAddress
    """Address of the bias's gradient, which is written; 0 where it is not wanted."""
    images: Word
    """Number of images."""
    some_images: Word
    """Number of register accumulators."""
    pixels: Word
    """Pixels of an image."""
    some_pixels: Word
    """Number of register accumulators."""
    rows: Word
    """Number of channel blocks."""
    panels: Word
    """Number of panels of filters."""
    panel_table: Address
    """Address of the panels' table. Columns: address of the function that sums a panel; elements
    from the beginning of a pixel, and of all filters, to each vector of the panel."""


@cache
def _kernel(width: int) -> int:
    """Return the address of the kernel."""
    name = f"pointwise_gradient{width}"
    return compiled(name, lambda module: _write(module, name, width), name)[name]


@cache
def _sums(width: int, vectors: int) -> int:
    """Return the address of what sums the pixels of a panel of so many vectors."""
    name = f"pixel_sums_{vectors}x{width}"
    return compiled(name, lambda module: _write_sums(module, name, width, vectors), name)[name]


def _write(module: Any, name: str, width: int) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    f = PointwiseGradientFields.read(k)
    first, behind = chunk(f.rows, *k.thread())
    shares = width // ROWS[width]  # rows whose channels are in the same lines of a cache
    fetched = k.word(k.vector_bytes) // (f.panels * shares)  # of a pixel's vector, along with each
    with (
        k.loop(f.images, 0, f.some_images) as image,
        k.loop(f.pixels, 0, f.some_pixels) as pixel,
    ):
        images = minimum(f.images - image.i, f.some_images)
        pixels = minimum(f.pixels - pixel.i, f.some_pixels)
        here = pixel.i * width
        in_image = f.pixels > pixel.i + pixels
        ahead = choose(in_image, pixels * width, f.x_image_stride * images - here)
        dy = f.dy + (image.i * f.dy_image_stride + here) * FLOAT
        with k.loop(f.panels) as panel, k.loop(behind, first) as row:
            x = image.i * f.x_image_stride + row.i // shares * f.x_block_stride + here
            entry = f.panel_table + panel.i * (COLUMNS * INT)
            portion = row.i % shares * f.panels + panel.i
            k.call_at(
                k.load_word(entry),
                f.x + (x + row.i % shares * ROWS[width]) * FLOAT,
                f.x_image_stride * FLOAT,
                f.x + (x + ahead) * FLOAT + portion * fetched * pixels,
                fetched,
                dy,
                f.dy_image_stride * FLOAT,
                images,
                pixels,
                f.filters + row.i * (ROWS[width] * k.vector_bytes),
                entry + INT,
                image.i + pixel.i,
            )
            with k.when((row.i < 1) & (f.bias > 0)):
                _add_bias(k, f, entry, dy, images, pixels, image.i + pixel.i)
    k.done()


def _add_bias(
    k: Kernel,
    f: PointwiseGradientFields,
    entry: Word,
    dy: Word,
    images: Word,
    pixels: Word,
    adds: Word,
) -> None:
    """Add up the gradients of a panel, once for all channels."""
    with k.loop(WIDEST) as vector:
        place = k.load_word(entry + INT + vector.i * INT)
        with k.when(place > -1):
            with k.loop(images, vectors=[k.constant(0.0)]) as image:
                start = dy + (image.i * f.dy_image_stride + place) * FLOAT
                with k.loop(pixels, vectors=image.vectors, words=[start]) as pixel:
                    pixel.vectors = [pixel.vectors[0] + k.load(pixel.words[0])]
                    pixel.words = [pixel.words[0] + k.vector_bytes]
                image.vectors = pixel.vectors
            of_filters = k.load_word(entry + (1 + WIDEST) * INT + vector.i * INT)
            target = f.bias + of_filters // (f.rows * ROWS[k.width]) * FLOAT
            k.accumulate([(image.vectors[0], target)], adds)


def _write_sums(module: Any, name: str, width: int, vectors: int) -> None:
    k = Kernel(module, name, 11, width, exported=True)
    x, x_image_bytes, ahead, fetched, dy, dy_image_bytes, images, pixels = k.arguments[:8]
    target, table, adds = k.arguments[8:]
    places = [place * FLOAT for place in k.load_words(table, vectors)]
    targets = [place * FLOAT for place in k.load_words(table + WIDEST * INT, vectors)]
    rows = ROWS[width]
    sums: list[Vector] = [k.constant(0.0)] * (rows * vectors)
    with k.loop(images, vectors=sums) as image:
        moved = image.i * x_image_bytes
        words = [x + moved, ahead + moved, dy + image.i * dy_image_bytes]
        with k.loop(pixels, vectors=image.vectors, words=words) as pixel:
            left, following, right = pixel.words
            k.prefetch(following, 2)
            columns = [k.load(right + place) for place in places]
            multiply(k, pixel.vectors, [left + FLOAT * row for row in range(rows)], columns)
            pixel.words = [left + k.vector_bytes, following + fetched, right + k.vector_bytes]
        image.vectors = pixel.vectors
    with_row = [target + k.vector_bytes * row + to for row in range(rows) for to in targets]
    k.accumulate(list(zip(image.vectors, with_row, strict=True)), adds)
    k.done()


class PointwiseGradient(TunedKernel):
    """The gradients of filters and bias.

    Filters lie in blocks of a vector's, and of so many channels of theirs, channel after channel.

    Args:
        x: The input.
        y: The gradient of the output.
        tuning: The kernel's vectors and threads.
        bias: Whether there is a bias.

    Raises:
        ValueError: The images are not in blocks of a vector's channels, pixel behind pixel.
    """

    kernel = "pointwise"

    def __init__(self, x: Images, y: Images, tuning: Tuning, *, bias: bool) -> None:
        if not (lies_in_vectors(x, tuning.width) and lies_in_vectors(y, tuning.width)):
            message = (
                f"{x} and {y} were given; give images in blocks of {tuning.width} channels, pixel "
                "behind pixel"
            )
            raise ValueError(message)
        self.tuning, width = tuning, tuning.width
        self._kernel = _kernel(width)
        n, channels, *sizes = x.shape
        pixels = sizes[0] * sizes[1]
        self._arguments = Arguments(
            PointwiseGradientFields.values(
                x=RUNTIME,
                x_image_stride=x.image_stride,
                x_block_stride=x.block_stride,
                dy=RUNTIME,
                dy_image_stride=y.image_stride,
                filters=RUNTIME,
                bias=RUNTIME if bias else None,
                images=n,
                some_images=max(1, PIXELS // pixels),
                pixels=pixels,
                some_pixels=-(-pixels // max(1, round(pixels / PIXELS))),
                rows=channels // ROWS[width],
                panels=len(split_columns(y.shape[1], width)),
                panel_table=np.array(list(self._panels(x, y)), np.int64),
            )
        )

    def _panels(self, x: Images, y: Images) -> Iterator[list[int]]:
        """Yield the entries of the table of panels."""
        width = self.tuning.width
        for vectors, first in split_columns(y.shape[1], width):
            filters = range(first, first + vectors * width, width)
            absent = [-1] * (WIDEST - vectors)
            read = [y.place(filter_) for filter_ in filters]
            written = [filter_ * x.shape[1] for filter_ in filters]
            yield [_sums(width, vectors), *read, *absent, *written, *absent]

    def __call__(
        self, source: np.ndarray, dy: np.ndarray, weight: np.ndarray, bias: np.ndarray | None
    ) -> None:
        """Write the gradients.

        Args:
            source: The images, in the memory that ``x`` describes.
            dy: The gradient of the output, in the memory that ``y`` describes.
            weight: For the gradient of the weights, in blocks.
            bias: For that of the bias, where there is one. Shape: (M,).
        """
        each = {"x": source, "dy": dy, "filters": weight}
        if bias is not None:
            each["bias"] = bias
        self._arguments.run(self._kernel, self.tuning.threads, each)


def lies_in_vectors(images: Images, width: int) -> bool:
    """Return whether images lie in blocks of a vector's channels, pixel behind pixel."""
    return images.block == images.column_stride == width and images.is_even
