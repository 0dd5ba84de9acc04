"""ROI pooling: the greatest value, or the mean, of each bin of a region, and their gradients."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf, prod
from typing import NamedTuple

import numpy as np

from demitasse.backends.kernels.bound import (
    BoundKernel,
    clearing,
    each_vector,
    own_vectors,
    threads_for,
)
from demitasse.backends.kernels.images import ImageFields, Images, need_layout
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Output, Struct, Values
from demitasse.backends.kernels.language.values import (
    FLOAT,
    INT,
    Condition,
    Vector,
    Word,
    choose,
    floats,
    horizontal_sum,
    is_nan,
    larger,
    maximum,
)
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.regions import Bins

FEWEST_EACH = 1 << 12
"""Results of a thread at least."""


class Bin(NamedTuple):
    """A bin in a kernel.

    Attributes:
        number: Number of the bin, counted through all regions.
        region: Its region.
        place: Number of the bin in its region.
        image: Image of the region.
        rows, columns: Begin and end of its pixels.
    """

    number: Word
    region: Word
    place: Word
    image: Word
    rows: list[Word]
    columns: list[Word]

    def pixels(self, k: Kernel) -> Vector:
        """Return the number of pixels in every lane; 1 for an empty bin."""
        (top, bottom), (left, right) = self.rows, self.columns
        return floats(k.lanes(maximum((bottom - top) * (right - left), 1), k.width, 32))


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

    @contextmanager
    def each(self, k: Kernel) -> Iterator[Bin]:
        """Write a loop over the thread's bins."""
        counts = self.regions, self.bin_rows, self.bin_columns
        with k.parallel_loop(*counts) as (region, row, column):
            yield self.bin(k, region, row, column)

    def bin(self, k: Kernel, region: Word, row: Word, column: Word) -> Bin:
        """Load a bin of a region."""
        place = row * self.bin_columns + column
        of_row, of_column = region * self.bin_rows + row, region * self.bin_columns + column
        return Bin(
            region * self.bin_rows * self.bin_columns + place,
            region,
            place,
            k.load_word(self.items + region * INT),
            k.load_words(self.rows + of_row * (2 * INT), 2),
            k.load_words(self.columns + of_column * (2 * INT), 2),
        )


class RegionKernel(BoundKernel):
    """A kernel whose first arrays are the bins of regions."""

    def run(self, bins: Bins, *arrays: np.ndarray) -> None:
        """Run it for bins within the images."""
        self(*(np.ascontiguousarray(table, np.int64) for table in bins), *arrays)


class RegionFields(Struct):
    """Images with the channels last, and results of bins."""

    bins: BinFields
    x: ImageFields
    y: Output


Change = Callable[[Vector, Vector, Word], Vector]
"""Takes a carried vector, a vector of a pixel, and the pixel's bytes from the first of the image;
returns the carried vector."""


def _each_pixel(
    k: Kernel, x: ImageFields, one: Bin, first: Vector, change: Change, place: Word,
    some: Condition | None,
) -> Vector:  # fmt: skip
    """Write a loop over a bin's pixels, of channels ``place`` bytes from the first."""
    source = x.row(one.image, 0)
    with k.loop(one.rows[1], one.rows[0], vectors=[first]) as row:
        line = row.i * x.row_stride * FLOAT + place
        with k.loop(one.columns[1], one.columns[0], vectors=row.vectors) as pixel:
            here = line + pixel.i * x.column_stride * FLOAT
            pixel.vectors = [change(pixel.vectors[0], k.load(source + here, some), here)]
        row.vectors = pixel.vectors
    return row.vectors[0]


def _greatest(k: Kernel, x: ImageFields, one: Bin, place: Word, some: Condition | None) -> Vector:
    """Write the maxima of a bin; those of an empty one are -inf."""

    def change(greatest: Vector, value: Vector, _: Word) -> Vector:
        return larger(greatest, value)

    return _each_pixel(k, x, one, k.constant(-inf), change, place, some)


@RegionFields.kernel("region_maxima")
def _kernel(k: Kernel, f: RegionFields) -> None:
    with f.bins.each(k) as one:
        (top, bottom), (left, right) = one.rows, one.columns
        target = f.y + one.number * f.x.channels * FLOAT

        def write(place: Word, some: Condition | None) -> None:
            greatest = _greatest(k, f.x, one, place, some)
            is_filled = (top < bottom) & (left < right)
            k.store(choose(is_filled, greatest, 0.0), target + place, some)

        each_vector(k, f.x.channels, write)


class RegionGradientFields(Struct):
    """Images with the channels last, and gradients; threads divide the channels."""

    bins: BinFields
    x: ImageFields
    dy: Address
    dx: Output
    size: Word
    """Elements of an image."""
    images: Word


@RegionGradientFields.kernel("region_maxima_gradient")
def _gradient_kernel(k: Kernel, f: RegionGradientFields) -> None:
    x, bins, pixel_bytes = f.x, f.bins, f.x.channels * FLOAT

    def write(place: Word, some: Condition | None) -> None:
        with k.loop(f.images * f.size * FLOAT, 0, pixel_bytes) as pixel:
            k.store(k.constant(0.0), f.dx + pixel.i + place, some)
        with (
            k.loop(bins.regions) as region,
            k.loop(bins.bin_rows) as row,
            k.loop(bins.bin_columns) as column,
        ):
            one = bins.bin(k, region.i, row.i, column.i)
            greatest = _greatest(k, x, one, place, some)
            image = f.dx + one.image * f.size * FLOAT

            def change(rest: Vector, value: Vector, here: Word) -> Vector:
                found = (value >= greatest) | is_nan(value)
                k.store(k.load(image + here, some) + choose(found, rest, 0.0), image + here, some)
                return choose(found, 0.0, rest)

            dy = k.load(f.dy + one.number * pixel_bytes + place, some)
            _each_pixel(k, x, one, dy, change, place, some)

    own_vectors(k, x.channels, write)


class RegionMaxima(RegionKernel):
    """The largest value of each channel in each bin, and 0 in an empty one. NaN stays.

    Each of a number of regions has ``pooled`` rows and columns of bins. A run takes images, and the
    result (regions, rows, columns, C) in C order.
    """

    def __init__(self, x: Images, regions: int, pooled: tuple[int, int], tuning: Tuning) -> None:
        need_layout(x.channel_stride == 1, x)
        values = RegionFields.values(x=ImageFields.of(x), bins=BinFields.of(regions, pooled))
        threads = threads_for(tuning, regions * x.shape[1] * prod(pooled), FEWEST_EACH)
        super().__init__("region maxima", _kernel(tuning.width), values, tuning, threads)


class RegionMaximaGradient(RegionKernel):
    """Gradient of :class:`RegionMaxima`: that of a bin goes to the first of its largest values.

    A run takes the images, the gradient of the maxima, and the result, that of the images.
    """

    def __init__(self, x: Images, regions: int, pooled: tuple[int, int], tuning: Tuning) -> None:
        need_layout(x.contiguous_bytes > 0, x)
        values = RegionGradientFields.values(
            x=ImageFields.of(x), bins=BinFields.of(regions, pooled), images=x.shape[0],
            size=prod(x.shape[1:]),
        )  # fmt: skip
        threads = threads_for(tuning, regions * x.shape[1] * prod(pooled), FEWEST_EACH)
        kernel = _gradient_kernel(tuning.width)
        super().__init__("region maxima gradient", kernel, values, tuning, threads)


FEWEST_MEANS_EACH = 1 << 10
"""Results of a thread at least."""


class MeanFields(Struct):
    """Images in C order, and bins."""

    bins: BinFields
    x: Address
    y: Output
    outputs: Word
    """Results of each bin."""
    height: Word
    width: Word


@MeanFields.kernel("region_means")
def _means_kernel(k: Kernel, f: MeanFields) -> None:
    bins, plane = f.bins.bin_rows * f.bins.bin_columns, f.height * f.width
    with f.bins.each(k) as one:
        (top, bottom), (left, right) = one.rows, one.columns
        source = f.x + (one.image * f.outputs * bins + one.place) * plane * FLOAT
        target = f.y + (one.region * f.outputs * bins + one.place) * FLOAT
        count = one.pixels(k)
        with k.loop(f.outputs, words=[source, target]) as output:
            here, result = output.words
            with k.loop(bottom, top, vectors=[k.constant(0.0)]) as line:
                start = here + line.i * f.width * FLOAT
                with k.loop(right, left, k.width, vectors=line.vectors) as pixel:
                    some = k.lane_mask(right - pixel.i)
                    value = k.load(start + pixel.i * FLOAT, some)
                    pixel.vectors = [pixel.vectors[0] + value]
                line.vectors = pixel.vectors
            mean = horizontal_sum(line.vectors[0]) / count
            k.store(mean, result, k.lane_mask(1))
            output.words = [here + bins * plane * FLOAT, result + bins * FLOAT]


class RegionMeans(RegionKernel):
    """Bin (i, j) of output d from channel (d G + i) G + j of an image; 0 in an empty one.

    The images have the shape (N, D G G, H, W); ``pooled`` is (G, G). A run takes the images and the
    result (regions, D, G, G), in C order.
    """

    def __init__(
        self, shape: tuple[int, ...], regions: int, pooled: tuple[int, int], tuning: Tuning
    ) -> None:
        outputs, rest = divmod(shape[1], prod(pooled))
        if rest:
            message = f"{shape[1]} channels for {pooled} bins; give a multiple of as many"
            raise ValueError(message)
        bins = BinFields.of(regions, pooled)
        values = MeanFields.values(bins=bins, outputs=outputs, height=shape[2], width=shape[3])
        threads = threads_for(tuning, regions * shape[1], FEWEST_MEANS_EACH)
        super().__init__("region means", _means_kernel(tuning.width), values, tuning, threads)


class MeanGradientFields(Struct):
    """Gradients in C order; threads divide the channels of the images."""

    bins: BinFields
    dy: Address
    dx: Output
    images: Word
    outputs: Word
    """Results of each bin."""
    height: Word
    width: Word


@MeanGradientFields.kernel("region_means_gradient")
def _means_gradient_kernel(k: Kernel, f: MeanGradientFields) -> None:
    bins, plane = f.bins.bin_rows * f.bins.bin_columns, f.height * f.width
    image_bytes = f.outputs * bins * plane * FLOAT
    with k.parallel_loop(f.outputs, f.bins.bin_rows, f.bins.bin_columns) as (output, row, column):
        channel = output * bins + row * f.bins.bin_columns + column
        target = f.dx + channel * plane * FLOAT
        with k.loop(f.images) as image:
            each_vector(k, plane, clearing(k, target + image.i * image_bytes))
        with k.loop(f.bins.regions) as region:
            one = f.bins.bin(k, region.i, row, column)
            dy = k.broadcast(f.dy + (region.i * f.outputs * bins + channel) * FLOAT)
            share = dy / one.pixels(k)
            with k.loop(one.rows[1], one.rows[0]) as line:
                start = target + one.image * image_bytes + line.i * f.width * FLOAT
                with k.loop(one.columns[1], one.columns[0], k.width) as pixel:
                    some, here = k.lane_mask(one.columns[1] - pixel.i), start + pixel.i * FLOAT
                    k.store(k.load(here, some) + share, here, some)


class RegionMeanGradient(RegionKernel):
    """Gradient of :class:`RegionMeans`: each pixel of a bin gets its share.

    A run takes the gradient of the means, and the result, that of the images.
    """

    def __init__(
        self, shape: tuple[int, ...], regions: int, pooled: tuple[int, int], tuning: Tuning
    ) -> None:
        images, channels, height, width = shape
        values = MeanGradientFields.values(
            bins=BinFields.of(regions, pooled), images=images, outputs=channels // prod(pooled),
            height=height, width=width,
        )  # fmt: skip
        threads = threads_for(tuning, regions * channels, FEWEST_MEANS_EACH)
        kernel = _means_gradient_kernel(tuning.width)
        super().__init__("region means gradient", kernel, values, tuning, threads)
