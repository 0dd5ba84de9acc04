"""Direct convolution of few input channels, and the gradient of its filters.

Rows of an image are copied in bands, with zeros around them; windows are multiplied with filters.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.epilogue import NOTHING, Rectifier, rectifying
from demitasse.backends.kernels.images import ImageFields, Images, first_channels, need_layout
from demitasse.backends.kernels.language import call_recorder
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Arguments, Scratch, Struct
from demitasse.backends.kernels.language.values import (
    FLOAT,
    INT,
    Vector,
    Word,
    chunk,
    minimum,
)
from demitasse.backends.kernels.products import ROWS, multiply, panel_vectors, tile_rows
from demitasse.backends.kernels.tuning import ConvSchedule, Tuning
from demitasse.backends.kernels.windows import (
    Padded,
    RegisterTile,
    WindowConvolution,
    bordered,
    plan_tile,
)
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
        return self.x[1] * math.prod(self.op.kernel)

    # -- bands ---------------------------------------------------------------------------------

    @cached_property
    def _reach(self) -> list[int]:
        """Rows and columns of a window, with what is between its taps."""
        sizes = zip(self.op.kernel, self.op.dilation, strict=True)
        return [(taps - 1) * step + 1 for taps, step in sizes]

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
    def vectors(self) -> int:
        """Vectors of a panel of filters."""
        return panel_vectors(self.y[1], self.width)

    @cached_property
    def most_rows(self) -> int:
        """Rows of a register tile at most."""
        return ROWS[self.width][self.vectors]

    @cached_property
    def tile(self) -> RegisterTile:
        """Windows of a row of outputs whose sums are computed at a time."""
        return plan_tile(self.y[3], self.most_rows, self.op)

    @cached_property
    def firsts(self) -> np.ndarray:
        """The first filter of each vector of all panels, whose last vectors may be equal."""
        firsts = first_channels(self.y[1], self.width)
        firsts += firsts[-1:] * (-len(firsts) % self.vectors)
        return np.array(firsts, np.int64)

    @cached_property
    def order(self) -> np.ndarray:
        """The filter of each element of a panel. Shape: (panels, filters of a panel)."""
        filters: np.ndarray = np.add.outer(self.firsts, np.arange(self.width))
        return filters.reshape(-1, self.vectors * self.width)

    @cached_property
    def tap_table(self) -> np.ndarray:
        """Bytes from a window's first tap to each, and to the plane of ones. Shape: (taps + 1,)."""
        (down, right), (high, wide) = self.op.dilation, self.op.kernel
        c, i, j = np.ogrid[: self.x[1], :high, :wide]
        places = (c * self.copied_rows + i * down) * self.copied_columns + j * right
        ones = self.x[1] * self.copied_rows * self.copied_columns
        return FLOAT * np.append(places.reshape(-1), ones).astype(np.int64)


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


class BandFields(Struct):
    """A convolution in bands."""

    x: ImageFields
    """The images, whose channels are planes."""
    y: ImageFields
    """The output, or its gradient; the columns are the convolution's."""
    step_down: Word
    """Rows of the image from one window to the window below."""
    step_right: Word
    """Columns of the image from one window to the next."""
    top: Word
    """Zeros above an image."""
    left: Word
    """Zeros on the left of an image."""
    rows_per_band: Word
    bands_per_image: Word
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
    """The filters, or their gradient: panel after panel, tap after tap."""
    panels: Word
    panel_stride: Word
    """Elements from one panel of filters to the next."""
    vector_table: Address
    """Bytes to each vector, from the first filter and from the first channel of an output."""


def band_values(
    schedule: DirectSchedule, y: Images, tap_table: np.ndarray, panel_stride: int
) -> dict[str, Any]:
    """Return the values of the fields but ``filters``."""
    need_layout(y.fits(schedule.width), y)
    op = schedule.op
    n, c, h, w = schedule.x
    return {
        "x": ImageFields.of(Images.in_order((n, c, h, w))),
        "y": ImageFields.of(y),
        "step_down": op.stride[0],
        "step_right": op.stride[1],
        "top": op.pad[0],
        "left": op.pad[1],
        "rows_per_band": schedule.rows_per_band,
        "bands_per_image": schedule.bands_per_image,
        "chunks": schedule.chunks,
        "copied_rows": schedule.copied_rows,
        "copied_columns": schedule.copied_columns,
        "scratch_bytes": FLOAT * schedule.copy_size,
        "tap_table": tap_table,
        "taps": len(tap_table),
        "panels": len(schedule.order),
        "panel_stride": panel_stride,
        "vector_table": FLOAT * schedule.firsts,
    }


class Band(NamedTuple):
    """Rows of outputs of one image, in the kernel.

    Attributes:
        chunk: Number of the chunk.
        again: Number of bands of the chunk before.
        copy: Address of the copied rows.
        output: Address of the first output.
        rows: Number of rows.
    """

    chunk: Word
    again: Word
    copy: Word
    output: Word
    rows: Word


@contextmanager
def each_band(k: Kernel, f: BandFields, *, ones: bool = False) -> Iterator[Band]:
    """Write a loop over the bands, chunk by chunk.

    With ``ones``, a plane of ones follows those of the image.
    """
    with k.loop(f.chunks, *k.thread()) as mine:
        copy = f.scratch + mine.i * f.scratch_bytes
        if ones:
            area = f.copied_rows * f.copied_columns
            plane = copy + area * f.x.channels * FLOAT
            with k.loop(area) as place:
                k.store(k.number(1.0), plane + place.i * FLOAT)
        begin, end = chunk(f.x.images * f.bands_per_image, mine.i, f.chunks)
        with k.loop(end, begin) as band:
            image = band.i // f.bands_per_image
            row = band.i % f.bands_per_image * f.rows_per_band
            rows = minimum(f.rows_per_band, f.y.rows - row)
            _copy(k, f, image, row * f.step_down - f.top, copy)
            yield Band(mine.i, band.i - begin, copy, f.y.row(image, row), rows)


def _copy(k: Kernel, f: BandFields, image: Word, first: Word, copy: Word) -> None:
    """Copy the rows of a band, of all planes."""
    padded = Padded(f.x.rows, f.x.columns, f.left, f.copied_columns)
    with k.loop(f.x.channels) as plane, k.loop(f.copied_rows) as line:
        y = first + line.i
        target = copy + (plane.i * f.copied_rows + line.i) * f.copied_columns * FLOAT
        source = f.x.row(image, y) + (plane.i * f.x.channel_stride - f.left) * FLOAT
        begin, end = bordered(k, y, padded, target, k.number(0.0), FLOAT)
        whole = end - (end - begin) % k.width
        with k.loop(whole, begin, k.width) as column:
            k.store(k.load(source + column.i * FLOAT), target + column.i * FLOAT)
        with k.loop(end, whole) as column:
            k.store(k.load_float(source + column.i * FLOAT), target + column.i * FLOAT)


class Panel(NamedTuple):
    """Some vectors of filters, in the kernel.

    Attributes:
        filters: Elements from the first panel's filters to this one's.
        firsts: Bytes to each vector, from the first filter and from the first channel of an output.
    """

    filters: Word
    firsts: Sequence[Word]


@contextmanager
def each_panel(k: Kernel, f: BandFields, vectors: int) -> Iterator[Panel]:
    """Write a loop over the panels of filters."""
    with k.loop(f.panels) as panel:
        firsts = k.load_words(f.vector_table + panel.i * (vectors * INT), vectors)
        yield Panel(panel.i * f.panel_stride, firsts)


class DirectFields(BandFields):
    """A direct convolution; its table has the first tap of each row of a window."""

    offsets: Address
    """One offset for each filter."""
    rectifier: Address
    """Numbers of the epilogue: the slopes of negative sums, one for each filter, or the limits."""


@DirectFields.kernel("direct")
def _kernel(
    k: Kernel, f: DirectFields, tile: RegisterTile, vectors: int, *, limited: bool, relu: bool
) -> None:
    stride = tile.stride * FLOAT
    with each_band(k, f) as band, each_panel(k, f, vectors) as panel:
        filters = f.filters + panel.filters * FLOAT
        with k.loop(band.rows) as row, k.loop(f.y.columns, 0, tile.pixels) as some:
            first = minimum(some.i, f.y.columns - tile.pixels)  # the last tile begins early
            window = band.copy + row.i * f.step_down * f.copied_columns * FLOAT + first * stride
            output = row.i * f.y.row_stride + first * f.y.column_stride
            offsets = [k.load(f.offsets + at) for at in panel.firsts]
            sums = _window_sums(k, f, tile, window, filters, offsets)
            for j, at in enumerate(panel.firsts):
                then = rectifying(k, f.rectifier, at, limited=limited, relu=relu)
                target = band.output + output * FLOAT + at
                for pixel in range(tile.pixels):
                    value = then(sums[pixel * vectors + j])
                    k.store(value, target + f.y.column_stride * (FLOAT * pixel))


def _window_sums(
    k: Kernel, f: DirectFields, tile: RegisterTile, window: Word, filters: Word,
    offsets: Sequence[Vector],
) -> list[Vector]:  # fmt: skip
    """Return the sums of a tile's windows times a panel's filters, pixel after pixel."""
    vectors = len(offsets)
    panel_bytes = vectors * k.vector_bytes
    start = [*offsets] * tile.pixels
    end = f.tap_table + f.taps * INT
    with k.loop(end, f.tap_table, INT, vectors=start, words=[filters]) as row:
        left, [right] = window + k.load_word(row.i), row.words
        for tap in range(tile.taps):
            first = k.no_cse(left)
            columns = [
                k.load(right + (panel_bytes * tap + k.vector_bytes * j)) for j in range(vectors)
            ]
            numbers = [
                first + FLOAT * (tile.stride * pixel + tile.dilation * tap)
                for pixel in range(tile.pixels)
            ]
            multiply(k, row.vectors, numbers, columns)
        row.words = [right + panel_bytes * tile.taps]
    return row.vectors


class DirectConvolution(WindowConvolution):
    """A convolution of few channels, with an offset for each filter and perhaps an epilogue.

    Images that are read are in C order.

    Attributes:
        scratch_size: Elements of scratch memory for a call.
        filters: The filters of each panel, tap after tap.
            Shape: (panels, taps, filters of a panel).
        nbytes: Bytes of the filters.
    """

    schedule: DirectSchedule

    def __init__(self, schedule: DirectSchedule, y: Images, then: Rectifier = NOTHING) -> None:
        panels, columns = schedule.order.shape
        self.scratch_size = schedule.chunks * schedule.copy_size
        size = schedule.taps * columns
        self.filters = aligned(panels * size).reshape(panels, schedule.taps, columns)
        self.nbytes, rectifier = self.filters.nbytes, then.numbers(schedule.y[1])
        rows = schedule.tap_table[: -1 : schedule.op.kernel[1]].copy()
        values = DirectFields.values(
            **band_values(schedule, y, rows, size), filters=self.filters, rectifier=rectifier
        )
        kernel = _kernel(
            schedule.width, schedule.tile, schedule.vectors, limited=then.limited, relu=then.relu
        )
        super().__init__(schedule, kernel, values, rectifier)
        self._order = schedule.order

    def update(self, weights: np.ndarray) -> None:
        """Copy new weights, in C order."""
        taps = self.filters.shape[1]
        by_filter = weights[: (self._order.max() + 1) * taps].reshape(-1, taps)
        self.filters[...] = by_filter[self._order].transpose(0, 2, 1)


class GradientFields(BandFields):
    """The gradient of a direct convolution's filters; ``filters`` are the sums of the chunks."""

    chunk_stride: Word
    """Elements from one chunk's sums to the next's."""


@GradientFields.kernel("direct_gradient")
def _gradient_kernel(k: Kernel, f: GradientFields, taps: int, vectors: int) -> None:
    """Write the kernel of tiles of some taps; the table has whole tiles."""
    window_bytes, row_bytes = f.step_right * FLOAT, f.step_down * f.copied_columns * FLOAT
    dy_bytes, dy_row_bytes = f.y.column_stride * FLOAT, f.y.row_stride * FLOAT
    zeros = [k.constant(0.0)] * (taps * vectors)
    with each_band(k, f, ones=True) as band, each_panel(k, f, vectors) as panel:
        sums = f.filters + (band.chunk * f.chunk_stride + panel.filters) * FLOAT
        with k.loop(f.taps, 0, taps) as tile:
            some = k.load_words(f.tap_table + tile.i * INT, taps)
            lefts = [band.copy + place for place in some]
            with k.loop(band.rows, vectors=zeros) as row:
                start = [row.i * row_bytes, band.output + row.i * dy_row_bytes]
                with k.loop(f.y.columns, vectors=row.vectors, words=start) as pixel:
                    window, gradient = pixel.words
                    columns = [k.load(gradient + place) for place in panel.firsts]
                    multiply(k, pixel.vectors, [left + window for left in lefts], columns)
                    pixel.words = [window + window_bytes, gradient + dy_bytes]
                row.vectors = pixel.vectors
            targets = [sums + (tile.i * vectors + at) * k.vector_bytes for at in range(len(zeros))]
            k.accumulate(list(zip(row.vectors, targets, strict=True)), band.again)


class DirectGradient:
    """The gradients of a convolution's weights and bias.

    The bias is the weight of a tap that is 1 in every window.

    Attributes:
        scratch_size: Elements of scratch memory for a call.
        sums: Sums of each chunk, for taps in whole tiles.
            Shape: (chunks, panels, taps, filters of a panel).
        nbytes: Bytes of the sums.
    """

    def __init__(self, schedule: DirectSchedule, y: Images, *, bias: bool) -> None:
        self.schedule, self.scratch_size = schedule, schedule.chunks * schedule.copy_size
        count = schedule.taps + bias
        rows = tile_rows(count, schedule.most_rows)
        taps = np.resize(schedule.tap_table[:count], -(-count // rows) * rows)
        shape = schedule.chunks, len(schedule.order), len(taps), schedule.order.shape[1]
        self.sums = aligned(math.prod(shape)).reshape(shape)
        self.nbytes = self.sums.nbytes
        values = GradientFields.values(
            **band_values(schedule, y, taps, shape[2] * shape[3]),
            filters=self.sums,
            chunk_stride=math.prod(shape[1:]),
        )
        self._kernel = _gradient_kernel(schedule.width, rows, schedule.vectors)
        self._arguments = Arguments(values)

    def __call__(
        self, source: np.ndarray, dy: np.ndarray, weight: np.ndarray, bias: np.ndarray | None,
        scratch: np.ndarray,
    ) -> None:  # fmt: skip
        """Write the gradients of the weights, in C order, and of the bias, (M,)."""
        each = {"x.at": source, "y.at": dy, "scratch": scratch}
        self._arguments.run(self._kernel, self.schedule.tuning.threads, each)
        call_recorder.call(self._unpack, weight, bias)

    def _unpack(self, weight: np.ndarray, bias: np.ndarray | None) -> None:
        """Write the sums to the parameters, whose filters come one by one."""
        taps, order = self.schedule.taps, self.schedule.order
        sums = self.sums.sum(axis=0)
        # a filter that is in two vectors has the same sums in both
        by_filter = weight[: self.schedule.y[1] * taps].reshape(-1, taps)
        by_filter[order] = sums[:, :taps].transpose(0, 2, 1)
        if bias is not None:
            bias[order] = sums[:, taps]
