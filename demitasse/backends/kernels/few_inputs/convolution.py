"""Direct convolution of few input channels, and its filters' gradient."""

from __future__ import annotations

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.epilogue import NOTHING, Rectifier
from demitasse.backends.kernels.few_inputs import DirectSchedule
from demitasse.backends.kernels.few_inputs.bands import (
    Band,
    BandFields,
    band_values,
    each_band,
    each_panel,
    window_products,
    window_sums,
)
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import command_queue
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Arguments, Struct, Values
from demitasse.backends.kernels.language.words import (
    FLOAT,
    INT,
    Word,
    choose,
    clamp_min,
    maximum,
    minimum,
)


class DirectFields(Struct):
    """A direct convolution."""

    bands: BandFields
    rectifier: Address
    """Numbers of the epilogue: the slope of negative sums, or the limits."""
    offsets: Address
    """One offset for each element of all vectors of filters."""


class PoolFields(Struct):
    """MAX pooling of a convolution's outputs; rows, columns and pixels are those of the outputs."""

    lines: Word
    """Rows of the convolution's outputs."""
    step_down: Word
    """Rows from one window to the window below."""
    step_right: Word
    """Columns from one window to the next."""
    top: Word
    """Rows that the first window begins above the outputs."""
    left: Word
    """Columns that the first window begins before the outputs."""
    columns: Word
    """Columns of the pooled output."""
    pixel_bytes: Word
    outputs_bytes: Word
    """Bytes from the beginning of a chunk's scratch to the outputs."""
    vectors: Word
    """Vectors of a pixel."""
    vector_table: Address
    """Bytes from the beginning of a pixel of the pooled output to each vector."""


class PooledFields(DirectFields):
    """A direct convolution with MAX pooling."""

    pool: PoolFields


@DirectFields.kernel("direct")
def _kernel(k: Kernel, f: DirectFields) -> None:
    y = f.bands.y
    with each_band(k, f.bands) as band:
        row_bytes, column_bytes = y.row_stride * FLOAT, y.column_stride * FLOAT
        _multiply(k, f, band, (k.word(0), band.rows), (band.output, row_bytes, column_bytes))


@PooledFields.kernel("direct_pooled")
def _pooled_kernel(k: Kernel, f: PooledFields, high: int, wide: int) -> None:
    """Write the kernel that pools windows of ``high`` rows and ``wide`` columns."""
    bands, pool = f.bands, f.pool
    with each_band(k, bands, line=lambda row: row * pool.step_down - pool.top) as band:
        outputs = band.copy + pool.outputs_bytes
        begin, end = _carry(k, bands, pool, band, outputs, high)
        row_bytes = bands.y.columns * pool.pixel_bytes
        _multiply(k, f, band, (begin, end), (outputs, row_bytes, pool.pixel_bytes))
        _pool(k, bands, pool, band, outputs, end, (high, wide))


def _multiply(
    k: Kernel,
    f: DirectFields,
    band: Band,
    lines: tuple[Word, Word],
    target: tuple[Word, Word, Word],
) -> None:
    """Write the products of a range of rows of a band.

    ``target`` has the address of the first output, and the bytes to the next row and column.
    """
    bands, (begin, end), (output, row_bytes, column_bytes) = f.bands, lines, target
    with each_panel(k, bands, band.filters) as panel, k.loop(end, begin) as row:
        k.call_at(
            panel.product, band.copy + row.i * bands.step_down * bands.copied_columns * FLOAT,
            bands.tap_table, bands.taps * INT, panel.filters, output + row.i * row_bytes,
            column_bytes, panel.places, f.offsets + panel.first * k.vector_bytes, bands.y.columns,
            f.rectifier, panel.remainders,
        )  # fmt: skip


class DirectConvolution:
    """A convolution of few channels, with an offset and perhaps an epilogue and MAX pooling.

    Attributes:
        scratch_size: Elements of scratch memory for a call.
        filters: The filters of each panel, tap after tap. Shape: (taps * pixel_stride,).
    """

    def __init__(self, banding: DirectSchedule, y: Images, then: Rectifier = NOTHING) -> None:
        self.banding, width, op, pool = banding, banding.width, banding.op, banding.pool
        self._kernel = _pooled_kernel(width, *pool.kernel) if pool else _kernel(width)
        self.scratch_size = banding.chunks * banding.chunk_scratch
        self.filters = aligned(banding.taps * banding.pixel_stride)
        self._offsets = aligned(banding.pixel_stride)
        places = [place for _, place in y.vectors(width)]
        if pool:
            places = list(range(0, banding.pixel_stride, width))
        products = window_products(
            width, op.kernel[1], op.dilation[1], op.stride[1], limited=then.limited
        )
        fields: dict[str, np.ndarray | Values] = {
            "bands": band_values(
                banding, y, products, banding.y[3], banding.row_table, banding.taps, places,
                filters=self.filters, filter_chunk_stride=0, chunk_scratch=banding.chunk_scratch,
            ),
            "rectifier": then.numbers(),
            "offsets": self._offsets,
        }  # fmt: skip
        self._arguments = Arguments(
            PooledFields.values(**fields, pool=_pool_values(banding, pool, y))
            if pool
            else DirectFields.values(**fields)
        )

    def update(self, weights: np.ndarray) -> None:
        """Copy new weights, given in C order."""
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

    def __call__(self, source: np.ndarray, target: np.ndarray, scratch: np.ndarray) -> None:
        """Convolve images in C order; ``scratch`` has :attr:`scratch_size` elements or more."""
        each = {"bands.x.at": source, "bands.y.at": target, "bands.scratch": scratch}
        self._arguments.run(self._kernel, self.banding.tuning.threads, each)


LEAST = -float(np.finfo(np.float32).max)
"""Initial value of MAX pooling, as in Caffe."""


def _pool_values(banding: DirectSchedule, pool: ops.Pool, y: Images) -> Values:
    table = np.array([FLOAT * place for _, place in y.vectors(banding.width)], np.int64)
    return PoolFields.values(
        lines=banding.y[2],
        step_down=pool.stride[0],
        step_right=pool.stride[1],
        top=pool.pad[0],
        left=pool.pad[1],
        columns=pool.top[3],
        pixel_bytes=FLOAT * banding.pixel_stride,
        outputs_bytes=FLOAT * banding.copy_size,
        vectors=len(table),
        vector_table=table,
    )


def _carry(
    k: Kernel, f: BandFields, p: PoolFields, band: Band, outputs: Word, high: int
) -> tuple[Word, Word]:
    """Copy rows of outputs that the previous band has computed; return the range of missing rows.

    Rows are counted from the band's first row.
    """
    above = maximum(-band.line, 0)
    lines = (band.rows - 1) * p.step_down + high
    end = minimum(lines, p.lines - band.line)
    common = high - p.step_down
    carried = (band.again > 0) & (band.row > 0) & (common > 0)
    row_bytes = f.y.columns * p.pixel_bytes
    with k.when(carried):
        source = outputs + f.rows_per_band * p.step_down * row_bytes
        with k.loop(common * row_bytes, 0, k.vector_bytes) as place:
            k.store(k.load(source + place.i), outputs + place.i)
    return choose(carried, common, above), end


def _pool(
    k: Kernel, f: BandFields, p: PoolFields, band: Band, outputs: Word, end: Word,
    shape: tuple[int, int],
) -> None:  # fmt: skip
    """Write the largest outputs of each window of a band, whose rows end before ``end``."""
    high, wide = shape
    begin = maximum(-band.line, 0)
    row_bytes = f.y.columns * p.pixel_bytes
    with k.loop(band.rows) as row, k.loop(p.columns) as column:
        top, left = row.i * p.step_down, column.i * p.step_right - p.left
        bottom, right = top + high, left + wide
        corner = outputs + top * row_bytes + left * p.pixel_bytes
        inside = (top >= begin) & (bottom <= end) & ((left >= 0) & (right <= f.y.columns))
        target = band.output + (row.i * f.y.row_stride + column.i * f.y.column_stride) * FLOAT
        with k.loop(p.vectors) as vector:
            here = corner + vector.i * k.vector_bytes
            there = target + k.load_word(p.vector_table + vector.i * INT)
            with k.cases(choose(inside, 1, 0)) as case:
                case(1)
                largest = k.constant(LEAST)
                for i in range(high):
                    line = here + row_bytes * i
                    for j in range(wide):
                        largest = clamp_min(largest, k.load(line + p.pixel_bytes * j))
                k.store(largest, there)
                case(0)
                first_row, first_column = maximum(begin - top, 0), maximum(-left, 0)
                last_row = minimum(high, end - top)
                last_column = minimum(wide, f.y.columns - left)
                with k.loop(last_row, first_row, vectors=[k.constant(LEAST)]) as down:
                    line = here + row_bytes * down.i
                    with k.loop(last_column, first_column, vectors=down.vectors) as across:
                        value = k.load(line + p.pixel_bytes * across.i)
                        across.vectors = [clamp_min(across.vectors[0], value)]
                    down.vectors = across.vectors
                k.store(down.vectors[0], there)


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
    """

    def __init__(self, banding: DirectSchedule, y: Images, *, bias: bool) -> None:
        self.banding, width = banding, banding.width
        self._kernel = _gradient_kernel(width)
        self.scratch_size = banding.chunks * banding.copy_size
        self._taps = banding.taps + bias
        chunk = self._taps * banding.pixel_stride
        self.sums = aligned(banding.chunks * chunk).reshape(banding.chunks, chunk)
        self._arguments = Arguments(
            band_values(
                banding, y, window_sums(width), self._taps, banding.tap_table[: self._taps],
                self._taps, [place for _, place in y.vectors(width)],
                filters=self.sums, filter_chunk_stride=chunk, chunk_scratch=banding.copy_size,
            )
        )  # fmt: skip

    def __call__(
        self, source: np.ndarray, dy: np.ndarray, weight: np.ndarray, bias: np.ndarray | None,
        scratch: np.ndarray,
    ) -> None:  # fmt: skip
        """Write the gradients of the weights, in C order, and of the bias, (M,)."""
        command_queue.enqueue(self._clear, (), None)
        each = {"x.at": source, "y.at": dy, "scratch": scratch}
        self._arguments.run(self._kernel, self.banding.tuning.threads, each)
        command_queue.enqueue(self._unpack, (weight, bias), None)

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
