"""ROI pooling: the greatest value, or the mean, of each bin of a region.

The vectors are channels. As many bins as a vector has elements are noted in a square, which is
transposed, so that the results are in C order: a fully connected layer comes next.
"""

from __future__ import annotations

import math
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
    Output,
    Struct,
)
from demitasse.backends.kernels.language.words import (
    FLOAT,
    INT,
    Condition,
    Word,
    choose,
    chunk,
    horizontal_sum,
    larger,
    minimum,
    transposed,
)
from demitasse.backends.kernels.tuning import TunedKernel, Tuning
from demitasse.backends.regions import Bins

FEWEST_EACH = 1 << 12
"""Results of a thread at least."""


class RegionFields(Struct):
    """Images of contiguous channels, all side by side or in blocks of whole vectors, and bins."""

    x: Address
    """Address of the first image."""
    y: Output
    """Address of the first result."""
    items: Address
    """Address of each region's image, its index in the batch."""
    rows: Address
    """Address of the first row of each row of bins, and the one after the last."""
    columns: Word
    """The same of columns."""
    regions: Word
    """Number of regions."""
    bin_rows: Word
    """Rows of bins of a region."""
    bin_columns: Word
    """Columns of bins."""
    channels: Word
    """Channels of an image."""
    block_channels: Word
    """Channels of a block of them."""
    block_vectors: Word
    """Number of vectors; the last one may be partial."""
    image_stride: Word
    """Elements from one image to the next."""
    block_stride: Word
    """Elements from one block to the next."""
    row_stride: Word
    """Elements from one row to the next."""
    column_stride: Word
    """Elements from one column to the next."""


@cache
def _kernel(width: int) -> int:
    """Return the address of the kernel for vectors of so many floats."""
    name = f"region_maxima{width}"
    return compiled(name, lambda module: _write(module, name, width), name)[name]


def _write(module: Any, name: str, width: int) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    f, square = RegionFields.read(k), k.scratch(width)
    count = f.bin_rows * f.bin_columns
    vectors = f.channels // f.block_channels * f.block_vectors
    begin, end = chunk(f.regions * vectors, *k.thread())
    with k.loop(end, begin) as part:
        region, vector = part.i // vectors, part.i % vectors
        block, first = vector // f.block_vectors, vector % f.block_vectors * width
        channels = minimum(f.block_channels - first, width)
        item = k.load_word(f.items + region * INT)
        source = f.x + (item * f.image_stride + block * f.block_stride + first) * FLOAT
        channel = region * f.channels + block * f.block_channels + first
        tables = (
            f.rows + region * f.bin_rows * (2 * INT),
            f.columns + region * f.bin_columns * (2 * INT),
        )
        with k.loop(count, 0, width, words=[k.word(0), k.word(0)]) as vector_of_bins:
            bins = minimum(count - vector_of_bins.i, width)
            with k.loop(bins, words=vector_of_bins.words) as one:
                row, column = one.words
                target = square + one.i * k.vector_bytes
                spans = [
                    k.load_words(table + place * (2 * INT), 2)
                    for table, place in zip(tables, (row, column), strict=True)
                ]
                _note(k, f, source, k.lane_mask(channels), spans, target)
                ends = column + 1 >= f.bin_columns
                one.words = [row + choose(ends, 1, 0), choose(ends, 0, column + 1)]
            vector_of_bins.words = one.words
            noted = [k.load(square + k.vector_bytes * place) for place in range(width)]
            for lane, maxima in enumerate(transposed(noted)):
                some = k.lane_mask(choose(channels > lane, bins, 0))
                k.masked_store(
                    maxima, f.y + ((channel + lane) * count + vector_of_bins.i) * FLOAT, some
                )
    k.done()


def _note(
    k: Kernel,
    f: RegionFields,
    source: Word,
    some: Condition,
    spans: list[list[Word]],
    target: Word,
) -> None:
    """Write the maxima of some channels in one bin.

    Args:
        k: The kernel.
        f: Its fields.
        source: Address of those channels of the image's first pixel.
        some: Which elements of a vector they are.
        spans: First row and the one after the last, and the same of columns.
        target: Address of the vector of maxima.
    """
    (top, bottom), (left, right) = spans
    row_bytes, column_bytes = f.row_stride * FLOAT, f.column_stride * FLOAT
    k.store(k.constant(0.0), target)
    with k.when((top < bottom) & (left < right)):
        begin, width = left * column_bytes, (right - left) * column_bytes
        start = source + top * row_bytes + begin
        with k.loop(bottom, top, words=[start], vectors=[k.masked_load(start, some)]) as row:
            [here] = row.words
            with k.loop(here + width, here, column_bytes, vectors=row.vectors) as pixel:
                pixel.vectors = [larger(pixel.vectors[0], k.masked_load(pixel.i, some))]
            row.vectors, row.words = pixel.vectors, [here + row_bytes]
        k.store(row.vectors[0], target)


def takes(images: Images, width: int) -> bool:
    """Return whether images have contiguous channels, all of them or whole vectors."""
    return bool(width) and images.has_runs(width)


class RegionMaxima(TunedKernel):
    """The largest value of each channel in each bin, and 0 in an empty one. NaN stays.

    Args:
        x: Where the elements of the images lie.
        regions: How many regions there are.
        pooled: Rows and columns of bins of each.
        tuning: The kernel's vectors and threads.

    Raises:
        ValueError: Channels fill no whole vectors of a block.
    """

    kernel = "region maxima"

    def __init__(self, x: Images, regions: int, pooled: tuple[int, int], tuning: Tuning) -> None:
        if not takes(x, tuning.width):
            message = f"{x} was given; give channels side by side, or blocks of whole vectors"
            raise ValueError(message)
        channels, (rows, columns) = x.shape[1], pooled
        self.tuning = tuning
        results = regions * channels * rows * columns
        self._threads = max(1, min(tuning.threads, results // FEWEST_EACH))
        self._kernel = _kernel(tuning.width)
        self._arguments = Arguments(
            RegionFields.values(
                x=RUNTIME,
                y=RUNTIME,
                items=RUNTIME,
                rows=RUNTIME,
                columns=RUNTIME,
                regions=regions,
                bin_rows=rows,
                bin_columns=columns,
                channels=channels,
                block_channels=x.block,
                block_vectors=-(-x.block // tuning.width),
                image_stride=x.image_stride,
                block_stride=x.block_stride,
                row_stride=x.row_stride,
                column_stride=x.column_stride,
            )
        )

    def __call__(self, x: np.ndarray, bins: Bins, y: np.ndarray) -> None:
        """Write ``y``, in C order.

        Args:
            x: The images, in the memory that was described.
            bins: Those of the regions, within the images.
            y: The results. Shape: (regions, C, rows, columns) or the same in one row.
        """
        tables = {
            name: np.ascontiguousarray(table, np.int64) for name, table in bins._asdict().items()
        }
        self._arguments.run(self._kernel, self._threads, {"x": x, "y": y, **tables})


REGION_MEANS_FEWEST_EACH = 1 << 10
"""Results of a thread at least."""


class MeanFields(Struct):
    """Images in C order, and bins."""

    x: Address
    """Address of the first image."""
    y: Output
    """Address of the first result."""
    items: Address
    """Address of each region's image, its index in the batch."""
    rows: Address
    """Address of the first row of each row of bins, and the one after the last."""
    columns: Word
    """The same of columns."""
    counts: Address
    """Address of how many pixels each bin has, a float; 1 for an empty one."""
    regions: Word
    """Number of regions."""
    outputs: Word
    """Results of each bin."""
    bin_rows: Word
    """Rows of bins of a region."""
    bin_columns: Word
    """Columns of bins."""
    height: Word
    """Rows of an image."""
    width: Word
    """Columns of an image."""


@cache
def _region_means_kernel(width: int) -> int:
    """Return the address of the kernel for vectors of so many floats."""
    name = f"region_means{width}"
    return compiled(name, lambda module: _region_means_write(module, name, width), name)[name]


def _region_means_write(module: Any, name: str, width: int) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    f = MeanFields.read(k)
    none, one = k.constant(0.0), k.lane_mask(k.word(1))
    bins, plane = f.bin_rows * f.bin_columns, f.height * f.width
    begin, end = chunk(f.regions * bins, *k.thread())
    with k.loop(end, begin) as part:
        region, place = part.i // bins, part.i % bins
        row, column = place // f.bin_columns, place % f.bin_columns
        top, bottom = k.load_words(f.rows + (region * f.bin_rows + row) * (2 * INT), 2)
        spans = f.columns + (region * f.bin_columns + column) * (2 * INT)
        left, right = k.load_words(spans, 2)
        image = k.load_word(f.items + region * INT) * f.outputs * bins
        source = f.x + (image + place) * plane * FLOAT
        target = f.y + (region * f.outputs * bins + place) * FLOAT
        count = k.broadcast(f.counts + part.i * FLOAT)
        with k.loop(f.outputs, words=[source, target]) as output:
            here, result = output.words
            with k.loop(bottom, top, vectors=[none]) as line:
                start = here + line.i * f.width * FLOAT
                with k.loop(right, left, width, vectors=line.vectors) as pixel:
                    some = k.lane_mask(minimum(right - pixel.i, width))
                    value = k.masked_load(start + pixel.i * FLOAT, some)
                    pixel.vectors = [pixel.vectors[0] + value]
                line.vectors = pixel.vectors
            k.masked_store(horizontal_sum(line.vectors[0]) / count, result, one)
            output.words = [here + bins * plane * FLOAT, result + bins * FLOAT]
    k.done()


class RegionMeans(TunedKernel):
    """Bin (i, j) of output d from channel (d G + i) G + j of an image; 0 in an empty one.

    Args:
        shape: Of the images, (N, D G G, H, W).
        regions: How many regions there are.
        pooled: Rows and columns of bins of each: G and G.
        tuning: The kernel's vectors and threads.

    Raises:
        ValueError: The channels are not those of whole outputs.
    """

    kernel = "region means"

    def __init__(
        self, shape: tuple[int, ...], regions: int, pooled: tuple[int, int], tuning: Tuning
    ) -> None:
        outputs, rest = divmod(shape[1], math.prod(pooled))
        if rest:
            message = f"{shape[1]} channels for {pooled} bins; give a multiple of as many"
            raise ValueError(message)
        self.tuning = tuning
        results = regions * shape[1]
        self._threads = max(1, min(tuning.threads, results // REGION_MEANS_FEWEST_EACH))
        self._kernel = _region_means_kernel(tuning.width)
        self._arguments = Arguments(
            MeanFields.values(
                x=RUNTIME,
                y=RUNTIME,
                items=RUNTIME,
                rows=RUNTIME,
                columns=RUNTIME,
                counts=RUNTIME,
                regions=regions,
                outputs=outputs,
                bin_rows=pooled[0],
                bin_columns=pooled[1],
                height=shape[2],
                width=shape[3],
            )
        )

    def __call__(self, x: np.ndarray, bins: Bins, y: np.ndarray) -> None:
        """Write ``y``; both are in C order.

        Args:
            x: The images.
            bins: Those of the regions, within the images.
            y: The results. Shape: (regions, D, G, G) or the same in one row.
        """
        tables = {
            name: np.ascontiguousarray(table, np.int64) for name, table in bins._asdict().items()
        }
        tall, wide = (np.diff(spans, axis=2)[:, :, 0] for spans in (bins.rows, bins.columns))
        counts = np.maximum(1, tall[:, :, None] * wide[:, None, :]).astype(np.float32)
        self._arguments.run(
            self._kernel, self._threads, {"x": x, "y": y, "counts": counts, **tables}
        )
