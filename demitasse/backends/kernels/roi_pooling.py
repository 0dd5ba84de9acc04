"""ROI pooling: the greatest value, or the mean, of each bin of a region.

The vectors are channels. As many bins as a vector has elements are noted in a square, which is
transposed, so that the results are in C order: a fully connected layer comes next.
"""

import math

import numpy as np

from demitasse.backends.kernels.bound import BoundKernel, threads_for
from demitasse.backends.kernels.image_fields import BlockFields
from demitasse.backends.kernels.images import Images, need_layout
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Output, Struct, Values
from demitasse.backends.kernels.language.values import (
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
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.regions import Bins

FEWEST_EACH = 1 << 12
"""Results of a thread at least."""


class BinFields(Struct):
    """Bins of regions."""

    items: Address
    """Index of each region's image in the batch."""
    rows: Address
    """First row of each row of bins, and the row after the last."""
    columns: Address
    """First column of each column of bins, and the column after the last."""
    regions: Word
    bin_rows: Word
    """Rows of bins of a region."""
    bin_columns: Word

    @classmethod
    def of(cls, regions: int, pooled: tuple[int, int]) -> Values:
        """Return the fields of regions with rows and columns of bins."""
        return cls.values(regions=regions, bin_rows=pooled[0], bin_columns=pooled[1])


def _tables(bins: Bins) -> list[np.ndarray]:
    return [np.ascontiguousarray(table, np.int64) for table in bins]


class RegionFields(Struct):
    """Images of contiguous channels, all or blocks of whole vectors, and results of bins."""

    x: BlockFields
    bins: BinFields
    y: Output
    channels: Word
    """Channels of an image."""


@RegionFields.kernel("region_maxima")
def _kernel(k: Kernel, f: RegionFields) -> None:
    width, square, x, b = k.width, k.scratch(k.width), f.x, f.bins
    count = b.bin_rows * b.bin_columns
    block_vectors = (x.block_channels + (width - 1)) // width
    vectors = x.blocks * block_vectors
    begin, end = chunk(b.regions * vectors, *k.thread())
    with k.loop(end, begin) as part:
        region, vector = part.i // vectors, part.i % vectors
        block, first = vector // block_vectors, vector % block_vectors * width
        channels = minimum(x.block_channels - first, width)
        item = k.load_word(b.items + region * INT)
        source = x.at + (item * x.image_stride + block * x.block_stride + first) * FLOAT
        channel = region * f.channels + block * x.block_channels + first
        tables = (
            b.rows + region * b.bin_rows * (2 * INT),
            b.columns + region * b.bin_columns * (2 * INT),
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
                _write_maxima(k, x, source, k.lane_mask(channels), spans, target)
                ends = column + 1 >= b.bin_columns
                one.words = [row + choose(ends, 1, 0), choose(ends, 0, column + 1)]
            vector_of_bins.words = one.words
            noted = [k.load(square + k.vector_bytes * place) for place in range(width)]
            for lane, maxima in enumerate(transposed(noted)):
                some = k.lane_mask(choose(channels > lane, bins, 0))
                k.masked_store(
                    maxima, f.y + ((channel + lane) * count + vector_of_bins.i) * FLOAT, some
                )


def _write_maxima(
    k: Kernel, x: BlockFields, source: Word, some: Condition, spans: list[list[Word]], target: Word
) -> None:
    """Write the maxima of some channels in one bin, the given spans of rows and columns."""
    (top, bottom), (left, right) = spans
    row_bytes, column_bytes = x.row_stride * FLOAT, x.column_stride * FLOAT
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


class RegionMaxima(BoundKernel):
    """The largest value of each channel in each bin, and 0 in an empty one. NaN stays.

    Each of a number of regions has ``pooled`` rows and columns of bins.
    """

    def __init__(self, x: Images, regions: int, pooled: tuple[int, int], tuning: Tuning) -> None:
        need_layout(x.has_runs(tuning.width), x)
        bins, channels = BinFields.of(regions, pooled), x.shape[1]
        values = RegionFields.values(x=BlockFields.of(x), bins=bins, channels=channels)
        threads = threads_for(tuning, regions * channels * math.prod(pooled), FEWEST_EACH)
        super().__init__("region maxima", _kernel(tuning.width), values, tuning, threads)

    def run(self, x: np.ndarray, bins: Bins, y: np.ndarray) -> None:
        """Write ``y``, (regions, C, rows, columns) in C order, from bins within the images."""
        self(x, *_tables(bins), y)


FEWEST_MEANS_EACH = 1 << 10
"""Results of a thread at least."""


class MeanFields(Struct):
    """Images in C order, and bins."""

    x: Address
    bins: BinFields
    counts: Address
    """Number of pixels of each bin, a float; 1 for an empty one."""
    y: Output
    outputs: Word
    """Results of each bin."""
    height: Word
    width: Word


@MeanFields.kernel("region_means")
def _means_kernel(k: Kernel, f: MeanFields) -> None:
    none, one, b = k.constant(0.0), k.lane_mask(k.word(1)), f.bins
    bins, plane = b.bin_rows * b.bin_columns, f.height * f.width
    begin, end = chunk(b.regions * bins, *k.thread())
    with k.loop(end, begin) as part:
        region, place = part.i // bins, part.i % bins
        row, column = place // b.bin_columns, place % b.bin_columns
        top, bottom = k.load_words(b.rows + (region * b.bin_rows + row) * (2 * INT), 2)
        spans = b.columns + (region * b.bin_columns + column) * (2 * INT)
        left, right = k.load_words(spans, 2)
        image = k.load_word(b.items + region * INT) * f.outputs * bins
        source = f.x + (image + place) * plane * FLOAT
        target = f.y + (region * f.outputs * bins + place) * FLOAT
        count = k.broadcast(f.counts + part.i * FLOAT)
        with k.loop(f.outputs, words=[source, target]) as output:
            here, result = output.words
            with k.loop(bottom, top, vectors=[none]) as line:
                start = here + line.i * f.width * FLOAT
                with k.loop(right, left, k.width, vectors=line.vectors) as pixel:
                    some = k.lane_mask(minimum(right - pixel.i, k.width))
                    value = k.masked_load(start + pixel.i * FLOAT, some)
                    pixel.vectors = [pixel.vectors[0] + value]
                line.vectors = pixel.vectors
            k.masked_store(horizontal_sum(line.vectors[0]) / count, result, one)
            output.words = [here + bins * plane * FLOAT, result + bins * FLOAT]


class RegionMeans(BoundKernel):
    """Bin (i, j) of output d from channel (d G + i) G + j of an image; 0 in an empty one.

    The images have the shape (N, D G G, H, W); ``pooled`` is (G, G).
    """

    def __init__(
        self, shape: tuple[int, ...], regions: int, pooled: tuple[int, int], tuning: Tuning
    ) -> None:
        outputs, rest = divmod(shape[1], math.prod(pooled))
        if rest:
            message = f"{shape[1]} channels for {pooled} bins; give a multiple of as many"
            raise ValueError(message)
        bins = BinFields.of(regions, pooled)
        values = MeanFields.values(bins=bins, outputs=outputs, height=shape[2], width=shape[3])
        threads = threads_for(tuning, regions * shape[1], FEWEST_MEANS_EACH)
        super().__init__("region means", _means_kernel(tuning.width), values, tuning, threads)

    def run(self, x: np.ndarray, bins: Bins, y: np.ndarray) -> None:
        """Write ``y``, (regions, D, G, G), from bins within the images; all are in C order."""
        tall, wide = (np.diff(spans, axis=2)[:, :, 0] for spans in (bins.rows, bins.columns))
        counts = np.maximum(1, tall[:, :, None] * wide[:, None, :]).astype(np.float32)
        self(x, *_tables(bins), counts, y)
