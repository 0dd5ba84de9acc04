"""Bands of rows that each thread copies, and products of windows with filters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np

from demitasse.backends.kernels.epilogue import rectifying
from demitasse.backends.kernels.few_inputs import DirectSchedule
from demitasse.backends.kernels.image_fields import ImageFields
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Scratch, Struct, Values
from demitasse.backends.kernels.language.words import FLOAT, INT, Vector, Word, chunk, minimum
from demitasse.backends.kernels.products import Panels, Rows, by_panel, multiply, product_rows
from demitasse.backends.kernels.windows import Padded, bordered

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

    Attributes:
        copy: Address of the copied rows.
        output: Address of the first output.
        row: The first output row.
        line: The first row of the convolution.
        filters: Address of the chunk's filters.
        again: 1 after the chunk's first band, else 0.
    """

    copy: Word
    output: Word
    row: Word
    line: Word
    rows: Word
    filters: Word
    again: Word


@contextmanager
def each_band(
    k: Kernel,
    f: BandFields,
    *,
    ones: bool = False,
    line: Callable[[Word], Word] = lambda row: row,
) -> Iterator[Band]:
    """Write a loop over the bands, chunk by chunk.

    With ``ones``, a plane of ones follows those of the image. ``line`` returns the convolution's
    first row that an output row needs.
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
            first = line(row)
            _copy(k, f, image, first * f.step_down - f.x.top, copy)
            output = image * f.y.image_stride + row * f.y.row_stride
            again = minimum(band.i - begin, 1)
            yield Band(copy, f.y.at + output * FLOAT, row, first, rows, filters, again)


def _copy(k: Kernel, f: BandFields, image: Word, first: Word, copy: Word) -> None:
    """Write the copy of an image's rows from ``first`` on, with zeros around it."""
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
    taps: int, places: Sequence[int], *, filters: np.ndarray, filter_chunk_stride: int,
    chunk_scratch: int,
) -> Values:  # fmt: skip
    """Return the values of the fields.

    The products run for ``count`` rows. Of a window, ``taps`` numbers are multiplied with filters.
    ``places`` are the elements from the beginning of a pixel of the products to each vector.
    """
    (_, c, h, w), (n, m, _, columns), op = banding.x, banding.y, banding.op
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
        y=ImageFields.of(replace(y, shape=(n, m, banding.rows, columns))),
        step_down=op.stride[0],
        step_right=op.stride[1],
        rows_per_band=banding.rows_per_band,
        bands_per_image=banding.bands_per_image,
        bands=n * banding.bands_per_image,
        chunks=banding.chunks,
        copied_rows=banding.copied_rows,
        copied_columns=banding.copied_columns,
        scratch_bytes=FLOAT * chunk_scratch,
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
    width: int, row: int, step: int, stride: int, *, limited: bool = False
) -> Panels:
    """Return the kernels of the forward pass, by the vectors of a panel.

    A row of pixels is the product of windows and a panel's filters; a row of a window has ``row``
    taps, ``step`` columns apart. Arguments: the first window; the table of the places of its rows,
    and bytes of the table; the filters, tap after tap; the first output, bytes to the next, the
    table of its vectors' places; the offsets, vector after vector; number of pixels; numbers of the
    epilogue; the table of remainders.
    """

    def write(k: Kernel, vectors: int, of: Rows) -> None:
        _write_product(k, vectors, of, row, FLOAT * step, FLOAT * stride, limited=limited)

    kind = f"window_product{row}s{step}s{stride}{'_limited' if limited else ''}"
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
) -> None:
    window, row_table, table_bytes, filters, output, output_bytes = k.arguments[:6]
    place_table, offsets, pixels, rectifier = k.arguments[6:10]
    vector = k.vector_bytes
    places = k.load_words(place_table, vectors)
    biases = [k.load(offsets + vector * j) for j in range(vectors)]
    then = rectifying(k, rectifier, None, limited=limited)
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
                total = then(loop.vectors[pixel * vectors + j])
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
