"""Direct convolution of few input channels, and the gradient of its filters.

Rows of an image are copied in bands, with zeros around them; windows are multiplied with filters.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from typing import ClassVar, NamedTuple

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.epilogue import NOTHING, Rectifier, rectifying
from demitasse.backends.kernels.image_fields import ImageFields
from demitasse.backends.kernels.images import Images, first_channels
from demitasse.backends.kernels.language import call_recorder
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Arguments, Scratch, Struct, Values
from demitasse.backends.kernels.language.values import (
    FLOAT,
    INT,
    Vector,
    Word,
    chunk,
    minimum,
)
from demitasse.backends.kernels.products import (
    Panels,
    Rows,
    by_panel,
    multiply,
    product_rows,
    split_columns,
)
from demitasse.backends.kernels.tuning import ConvSchedule, Tuning
from demitasse.backends.kernels.windows import Padded, bordered
from demitasse.backends.step import decline_if

LINE = 16
"""Elements of a cache line."""


@dataclass(frozen=True)
class DirectSchedule(ConvSchedule):
    """A convolution of images with few channels.

    A band is some output rows of one image. Threads divide the bands: each has its chunk of them. A
    thread copies the rows of the image that a band takes, with zeros around them, and reads windows
    from there.
    """

    kernel: ClassVar[str] = "direct"

    @cached_property
    def chunks(self) -> int:
        return min(self.tuning.threads, self.y[0] * self.y[2])

    @cached_property
    def taps(self) -> int:
        """Numbers of a window."""
        return self.x[1] * self.op.kernel[0] * self.op.kernel[1]

    @cached_property
    def _reach(self) -> tuple[int, int]:
        """Rows and columns of a window, with what is between its taps."""
        down, right = (
            (size - 1) * step + 1
            for size, step in zip(self.op.kernel, self.op.dilation, strict=True)
        )
        return down, right

    # -- bands ---------------------------------------------------------------------------------

    @cached_property
    def rows_per_band(self) -> int:
        """Rows that are worked on at a time, the same number in all but an image's last band."""
        lines = self.tuning.copy_bytes // (self.x[1] * self.copied_columns * FLOAT)
        rows = (lines - self._reach[0]) // self.op.stride[0] + 1
        # at least as many bands as chunks
        rows = min(max(1, rows), -(-self.y[0] * self.y[2] // self.chunks), self.y[2])
        return -(-self.y[2] // -(-self.y[2] // rows))

    @cached_property
    def bands_per_image(self) -> int:
        return -(-self.y[2] // self.rows_per_band)

    @cached_property
    def copied_rows(self) -> int:
        return (self.rows_per_band - 1) * self.op.stride[0] + self._reach[0]

    @cached_property
    def copied_columns(self) -> int:
        return (self.y[3] - 1) * self.op.stride[1] + self._reach[1]

    @cached_property
    def copy_size(self) -> int:
        """Elements of what a thread copies, with a plane of ones, and what lies between threads."""
        elements = (self.x[1] + 1) * self.copied_rows * self.copied_columns
        return -(-elements // LINE) * LINE + LINE

    # -- filters -------------------------------------------------------------------------------

    @cached_property
    def vectors(self) -> list[int]:
        return first_channels(self.y[1], self.width)

    @cached_property
    def pixel_stride(self) -> int:
        """Elements of the outputs at one place, whole vectors."""
        return len(self.vectors) * self.width

    @cached_property
    def panels(self) -> list[tuple[int, int]]:
        """Panels of vectors: number of vectors, and first vector."""
        found = split_columns(self.y[1], self.width)
        return [(vectors, first // self.width) for vectors, first in found]

    @cached_property
    def order(self) -> np.ndarray:
        """The filter of each element of all vectors. Shape: (pixel_stride,)."""
        return np.concatenate([np.arange(at, at + self.width) for at in self.vectors])

    @cached_property
    def tap_table(self) -> np.ndarray:
        """Bytes from a window's first tap to each, and to the plane of ones. Shape: (taps + 1,)."""
        (down, right), (high, wide) = self.op.dilation, self.op.kernel
        c, i, j = np.ogrid[: self.x[1], :high, :wide]
        places = (c * self.copied_rows + i * down) * self.copied_columns + j * right
        ones = self.x[1] * self.copied_rows * self.copied_columns
        return FLOAT * np.append(places.reshape(-1), ones).astype(np.int64)

    @cached_property
    def row_table(self) -> np.ndarray:
        """Bytes from a window's first tap to the first of each row. Shape: (channels * rows,)."""
        return self.tap_table[: -1 : self.op.kernel[1]].copy()


FEWEST = 3e5
"""Operations below which starting a kernel takes longer than it saves."""

WIDEST = 16
"""Greatest number of taps of a window's row; kernels are unrolled over taps."""


def plan_direct(op: ops.Conv, x: ops.Shape, y: ops.Shape, tuning: Tuning) -> DirectSchedule:
    """Return the schedule of a convolution with few input channels; shapes are (N, C, H, W).

    Raises:
        Declined: Channels or windows are unsupported, or the convolution is too small to gain.
    """
    tuning.require("few_inputs")
    few = len(op.kernel) == 2 and op.group == 1 and x[1] < tuning.width <= y[1]
    decline_if(
        not few or max(op.kernel) == 1 or op.kernel[1] > WIDEST,
        f"direct convolution takes images of fewer than {tuning.width} channels to as many "
        f"or more, in one group, windows up to {WIDEST} wide",
    )
    work = 2 * math.prod(y) * x[1] * math.prod(op.kernel)
    decline_if(
        "few_inputs" not in tuning.always and work < FEWEST,
        f"{work:.1e} operations; direct convolution pays from {FEWEST:.0e} on",
    )
    return DirectSchedule(op, x, y, tuning)


COLUMNS = 7
"""Integers of an entry of the table of panels."""


class InputFields(Struct):
    """The images, whose planes come one by one."""

    at: Address
    image_stride: Word
    plane_stride: Word
    row_stride: Word
    planes: Word
    height: Word
    width: Word
    top: Word
    """Zeros above an image."""
    left: Word
    """Zeros on the left of an image."""


class BandFields(Struct):
    """A convolution in bands."""

    x: InputFields
    y: ImageFields
    """The output, or its gradient; the columns are the convolution's."""
    step_down: Word
    """Rows of the image from one window to the window below."""
    step_right: Word
    """Columns of the image from one window to the next."""
    rows_per_band: Word
    bands_per_image: Word
    bands: Word
    """Bands of all images."""
    chunks: Word
    copied_rows: Word
    """Rows that are copied for a band."""
    copied_columns: Word
    scratch: Scratch
    scratch_bytes: Word
    """Bytes from one chunk's scratch to the next's."""
    tap_table: Address
    """Bytes from a window's first tap to others."""
    taps: Word
    """Entries of the table."""
    filters: Address
    """The filters, or their gradient."""
    filter_chunk_stride: Word
    """Elements from one chunk's filters to the next's; 0 if all have the same."""
    panels: Word
    panel_table: Address
    """Columns: addresses of product and remainders; elements from the first filter to the panel's;
    the panel's first vector; bytes from the beginning of a pixel to three vectors."""


class Band(NamedTuple):
    """Rows of outputs of one image, in the kernel.

    These are addresses of the copied rows and of the first output; the number of rows; the address
    of the chunk's filters.
    """

    copy: Word
    output: Word
    rows: Word
    filters: Word


@contextmanager
def each_band(k: Kernel, f: BandFields, *, ones: bool = False) -> Iterator[Band]:
    """Write a loop over the bands, chunk by chunk.

    With ``ones``, a plane of ones follows those of the image.
    """
    thread, threads = k.thread()
    with k.loop(f.chunks, thread, threads) as mine:
        copy = f.scratch + mine.i * f.scratch_bytes
        if ones:
            area = f.copied_rows * f.copied_columns
            plane = copy + area * f.x.planes * FLOAT
            with k.loop(area) as place:
                k.store(k.number(1.0), plane + place.i * FLOAT)
        filters = f.filters + mine.i * f.filter_chunk_stride * FLOAT
        begin, end = chunk(f.bands, mine.i, f.chunks)
        with k.loop(end, begin) as band:
            image = band.i // f.bands_per_image
            row = band.i % f.bands_per_image * f.rows_per_band
            rows = minimum(f.rows_per_band, f.y.rows - row)
            _copy(k, f, image, row * f.step_down - f.x.top, copy)
            output = image * f.y.image_stride + row * f.y.row_stride
            yield Band(copy, f.y.at + output * FLOAT, rows, filters)


def _copy(k: Kernel, f: BandFields, image: Word, first: Word, copy: Word) -> None:
    x = f.x
    padded = Padded(x.height, x.width, x.left, f.copied_columns)
    with k.loop(x.planes) as plane, k.loop(f.copied_rows) as line:
        y = first + line.i
        target = copy + (plane.i * f.copied_rows + line.i) * f.copied_columns * FLOAT
        row = image * x.image_stride + plane.i * x.plane_stride + y * x.row_stride
        source = x.at + (row - x.left) * FLOAT
        begin, end = bordered(k, y, padded, target, k.number(0.0), FLOAT)
        whole = end - (end - begin) % k.width
        with k.loop(whole, begin, k.width) as column:
            k.store(k.load(source + column.i * FLOAT), target + column.i * FLOAT)
        with k.loop(end, whole) as column:
            k.store(k.load_float(source + column.i * FLOAT), target + column.i * FLOAT)


class Panel(NamedTuple):
    """Some vectors of filters, in the kernel: addresses, and the index of the ``first`` vector.

    ``places`` is a table of the bytes from the beginning of a pixel to each vector.
    """

    product: Word
    remainders: Word
    filters: Word
    first: Word
    places: Word


@contextmanager
def each_panel(k: Kernel, f: BandFields, filters: Word) -> Iterator[Panel]:
    """Write a loop over the panels of filters at an address."""
    with k.loop(f.panels) as panel:
        entry = f.panel_table + panel.i * (COLUMNS * INT)
        product, remainders, elements, first = k.load_words(entry, 4)
        yield Panel(product, remainders, filters + elements * FLOAT, first, entry + 4 * INT)


def band_values(
    banding: DirectSchedule, y: Images, products: Panels, count: int, tap_table: np.ndarray,
    taps: int, *, filters: np.ndarray, filter_chunk_stride: int,
) -> Values:  # fmt: skip
    """Return the values of the fields.

    The products run for ``count`` rows. Of a window, ``taps`` numbers are multiplied with filters.
    """
    (n, c, h, w), op = banding.x, banding.op
    places = [place for _, place in y.vectors(banding.width)]
    table = np.zeros((len(banding.panels), COLUMNS), np.int64)
    for row, (vectors, first) in zip(table, banding.panels, strict=True):
        row[:4] = *products(vectors, {count}).entry, first * banding.width * taps, first
        row[4 : 4 + vectors] = [FLOAT * place for place in places[first : first + vectors]]
    return BandFields.values(
        x=InputFields.values(
            image_stride=c * h * w,
            plane_stride=h * w,
            row_stride=w,
            planes=c,
            height=h,
            width=w,
            top=op.pad[0],
            left=op.pad[1],
        ),
        y=ImageFields.of(y),
        step_down=op.stride[0],
        step_right=op.stride[1],
        rows_per_band=banding.rows_per_band,
        bands_per_image=banding.bands_per_image,
        bands=n * banding.bands_per_image,
        chunks=banding.chunks,
        copied_rows=banding.copied_rows,
        copied_columns=banding.copied_columns,
        scratch_bytes=FLOAT * banding.copy_size,
        tap_table=tap_table,
        taps=len(tap_table),
        filters=filters,
        filter_chunk_stride=filter_chunk_stride,
        panels=len(table),
        panel_table=table,
    )


WRITTEN_OUT = 5
"""Taps of a row up to which code for the last windows of a line is unrolled, as all other code is.
There are more kernels for the last windows than for the others, and each takes time to compile."""


@cache
def window_products(
    width: int, row: int, step: int, stride: int, *, limited: bool = False, relu: bool = False
) -> Panels:
    """Return the kernels of the forward pass, by the vectors of a panel.

    A row of pixels is the product of windows and a panel's filters; a row of a window has ``row``
    taps, ``step`` columns apart. Arguments: the first window; the table of the places of its rows,
    and bytes of the table; the filters, tap after tap; the first output, bytes to the next, the
    table of its vectors' places; the offsets, vector after vector; number of pixels; numbers of the
    epilogue, vector after vector; the table of remainders.
    """

    def write(k: Kernel, vectors: int, of: Rows) -> None:
        places = row, FLOAT * step, FLOAT * stride
        _write_product(k, vectors, of, *places, limited=limited, relu=relu)

    kind = f"window_product{row}s{step}s{stride}" + "_limited" * limited + "_relu" * relu
    return by_panel(kind, width, 11, write)


@cache
def window_sums(width: int) -> Panels:
    """Return the kernels of the filters' gradient, by the vectors of a panel.

    The gradient of a panel's filters is the sum over pixels of windows times the outputs' gradient.
    Arguments: the first window, bytes to the next, and to that below; the taps' table, and their
    number; the first output's gradient, bytes to the next, and to that below, the table of its
    vectors' places; the totals, tap after tap, to which the sums are added; pixels of a row,
    and rows; the table of remainders.
    """
    return by_panel("window_sum", width, 13, _write_sum)


def _write_product(
    k: Kernel,
    vectors: int,
    of: Rows,
    taps: int,
    tap_bytes: int,
    stride_bytes: int,
    *,
    limited: bool,
    relu: bool,
) -> None:
    window, row_table, table_bytes, filters, output, output_bytes = k.arguments[:6]
    place_table, offsets, pixels, rectifier = k.arguments[6:10]
    vector = k.vector_bytes
    places = k.load_words(place_table, vectors)
    biases = [k.load(offsets + vector * j) for j in range(vectors)]
    thens = [
        rectifying(k, rectifier, vector * j, limited=limited, relu=relu) for j in range(vectors)
    ]
    end = row_table + table_bytes

    def add(totals: list[Vector], right: Word, left: Word, tap: int, count: int) -> None:
        """Write the products of one tap, so many taps behind ``left``, of some windows."""
        first = k.no_cse(left)
        columns = [k.load(right + vector * j) for j in range(vectors)]
        numbers = [first + (stride_bytes * pixel + tap_bytes * tap) for pixel in range(count)]
        multiply(k, totals, numbers, columns)

    def sums(starts: Sequence[Word], count: int) -> None:
        window, output = starts
        with k.loop(end, row_table, INT, vectors=biases * count, words=[filters]) as loop:
            left, [row] = window + k.load_word(loop.i), loop.words
            if count == of.most or taps <= WRITTEN_OUT:
                for tap in range(taps):
                    add(loop.vectors, row + vector * vectors * tap, left, tap, count)
            else:
                with k.loop(taps, vectors=loop.vectors, words=[row, left]) as row_taps:
                    right, left = row_taps.words
                    add(row_taps.vectors, right, left, 0, count)
                    row_taps.words = [right + vector * vectors, left + tap_bytes]
                loop.vectors = row_taps.vectors
            loop.words = [row + vector * vectors * taps]
        for pixel in range(count):
            for j, place in enumerate(places):
                total = thens[j](loop.vectors[pixel * vectors + j])
                k.store(total, output + output_bytes * pixel + place)

    product_rows(k, pixels, of, (window, output), (stride_bytes, output_bytes), sums)
    k.done()


def _write_sum(k: Kernel, vectors: int, of: Rows) -> None:
    window, window_bytes, window_row_bytes, tap_table, taps = k.arguments[:5]
    dy, dy_bytes, dy_row_bytes, place_table, totals, pixels, rows = k.arguments[5:12]
    vector = k.vector_bytes
    places = k.load_words(place_table, vectors)

    def sums(starts: Sequence[Word], count: int) -> None:
        tap, target = starts
        lefts = [window + distance for distance in k.load_words(tap, count)]
        zeros = [k.constant(0.0)] * (count * vectors)
        with k.loop(rows, vectors=zeros) as row:
            first, right = row.i * window_row_bytes, dy + row.i * dy_row_bytes
            with k.loop(pixels, vectors=row.vectors, words=[first, right]) as pixel:
                offset, gradient = pixel.words
                columns = [k.load(gradient + place) for place in places]
                multiply(k, pixel.vectors, [left + offset for left in lefts], columns)
                pixel.words = [offset + window_bytes, gradient + dy_bytes]
            row.vectors = pixel.vectors
        places_of_sums = [target + vector * at for at in range(len(zeros))]
        k.accumulate(list(zip(row.vectors, places_of_sums, strict=True)), 1)

    product_rows(k, taps, of, (tap_table, totals), (INT, vector * vectors), sums)
    k.done()


class DirectFields(Struct):
    """A direct convolution."""

    bands: BandFields
    rectifier: Address
    """Numbers of each vector's epilogue: the slopes of negative sums, or the limits."""
    offsets: Address
    """One offset for each element of all vectors of filters."""


@DirectFields.kernel("direct")
def _kernel(k: Kernel, f: DirectFields) -> None:
    bands, y = f.bands, f.bands.y
    row_bytes, column_bytes = y.row_stride * FLOAT, y.column_stride * FLOAT
    with (
        each_band(k, bands) as band,
        each_panel(k, bands, band.filters) as panel,
        k.loop(band.rows) as row,
    ):
        k.call_at(
            panel.product, band.copy + row.i * bands.step_down * bands.copied_columns * FLOAT,
            bands.tap_table, bands.taps * INT, panel.filters, band.output + row.i * row_bytes,
            column_bytes, panel.places, f.offsets + panel.first * k.vector_bytes, y.columns,
            f.rectifier + panel.first * k.vector_bytes, panel.remainders,
        )  # fmt: skip


class DirectConvolution:
    """A convolution of few channels, with an offset and perhaps an epilogue.

    Attributes:
        scratch_size: Elements of scratch memory for a call.
        filters: The filters of each panel, tap after tap. Shape: (taps * pixel_stride,).
        nbytes: Bytes of the filters.
    """

    def __init__(self, banding: DirectSchedule, y: Images, then: Rectifier = NOTHING) -> None:
        self.banding, width, op = banding, banding.width, banding.op
        self._kernel = _kernel(width)
        self.scratch_size = banding.chunks * banding.copy_size
        self.filters = aligned(banding.taps * banding.pixel_stride)
        self.nbytes = self.filters.nbytes
        self._offsets, self._rectifier = (aligned(banding.pixel_stride) for _ in range(2))
        numbers = then.numbers(width)
        self._rectifier.reshape(-1, width)[:, : numbers.size] = numbers
        products = window_products(
            width, op.kernel[1], op.dilation[1], op.stride[1],
            limited=then.limited, relu=then.relu,
        )  # fmt: skip
        self._arguments = Arguments(
            DirectFields.values(
                bands=band_values(
                    banding, y, products, banding.y[3], banding.row_table, banding.taps,
                    filters=self.filters, filter_chunk_stride=0,
                ),
                rectifier=self._rectifier,
                offsets=self._offsets,
            )
        )  # fmt: skip

    def update(self, weights: np.ndarray) -> None:
        banding = self.banding
        m, taps, width = banding.y[1], banding.taps, banding.width
        by_tap = weights[: m * taps].reshape(m, taps).T
        for vectors, first in banding.panels:
            begin, columns = first * width, vectors * width
            some = banding.order[begin : begin + columns]
            part = self.filters[begin * taps : (begin + columns) * taps]
            part.reshape(taps, columns)[...] = by_tap[:, some]

    def take_offsets(self, offsets: np.ndarray) -> None:
        """Copy new offsets, one for each filter; the initial offsets are zeros."""
        np.take(offsets, self.banding.order, out=self._offsets)

    def take_slopes(self, slopes: np.ndarray) -> None:
        """Copy new slopes of negative sums: one for each filter, or one for all."""
        self._rectifier[...] = slopes if slopes.size == 1 else slopes[self.banding.order]

    def __call__(self, source: np.ndarray, target: np.ndarray, scratch: np.ndarray) -> None:
        """Convolve images in C order; ``scratch`` has :attr:`scratch_size` elements or more."""
        each = {"bands.x.at": source, "bands.y.at": target, "bands.scratch": scratch}
        self._arguments.run(self._kernel, self.banding.tuning.threads, each)


@BandFields.kernel("direct_gradient")
def _gradient_kernel(k: Kernel, f: BandFields) -> None:
    with each_band(k, f, ones=True) as band, each_panel(k, f, band.filters) as panel:
        k.call_at(
            panel.product, band.copy, f.step_right * FLOAT, f.step_down * f.copied_columns * FLOAT,
            f.tap_table, f.taps, band.output, f.y.column_stride * FLOAT, f.y.row_stride * FLOAT,
            panel.places, panel.filters, f.y.columns, band.rows, panel.remainders,
        )  # fmt: skip


class DirectGradient:
    """The gradients of a convolution's weights and bias.

    The bias is the weight of a tap that is 1 in every window.

    Attributes:
        scratch_size: Elements of scratch memory for a call.
        sums: Sums of each chunk. Shape: (chunks, taps * pixel_stride).
        nbytes: Bytes of the sums.
    """

    def __init__(self, banding: DirectSchedule, y: Images, *, bias: bool) -> None:
        self.banding, width = banding, banding.width
        self._kernel = _gradient_kernel(width)
        self.scratch_size = banding.chunks * banding.copy_size
        self._taps = banding.taps + bias
        chunk = self._taps * banding.pixel_stride
        self.sums = aligned(banding.chunks * chunk).reshape(banding.chunks, chunk)
        self.nbytes = self.sums.nbytes
        self._arguments = Arguments(
            band_values(
                banding, y, window_sums(width), self._taps, banding.tap_table[: self._taps],
                self._taps, filters=self.sums, filter_chunk_stride=chunk,
            )
        )  # fmt: skip

    def __call__(
        self, source: np.ndarray, dy: np.ndarray, weight: np.ndarray, bias: np.ndarray | None,
        scratch: np.ndarray,
    ) -> None:  # fmt: skip
        """Write the gradients of the weights, in C order, and of the bias, (M,)."""
        call_recorder.call(self._clear)
        each = {"x.at": source, "y.at": dy, "scratch": scratch}
        self._arguments.run(self._kernel, self.banding.tuning.threads, each)
        call_recorder.call(self._unpack, weight, bias)

    def _clear(self) -> None:
        self.sums[...] = 0.0

    def _unpack(self, weight: np.ndarray, bias: np.ndarray | None) -> None:
        """Write the sums to the parameters, whose filters come one by one."""
        banding, taps, sums = self.banding, self._taps, self.sums.sum(axis=0)
        m = banding.y[1]
        weight = weight[: m * banding.taps].reshape(m, banding.taps)
        for vectors, first in banding.panels:
            begin, columns = first * banding.width, vectors * banding.width
            part = sums[begin * taps : (begin + columns) * taps].reshape(taps, columns)
            # a filter that is in two vectors has the same sums in both
            some = banding.order[begin : begin + columns]
            weight[some] = part[: banding.taps].T
            if bias is not None:
                bias[some] = part[-1]
