"""Direct convolution of few input channels, and the gradient of its filters.

Each number of a window is multiplied with all filters of a panel, which lie side by side.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.bound import BoundKernel
from demitasse.backends.kernels.epilogue import NOTHING, Rectifier
from demitasse.backends.kernels.filter_packing import OrderedFilters, part_sums
from demitasse.backends.kernels.images import ImageFields, Images, first_channels, need_layout
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Output, Struct, Values
from demitasse.backends.kernels.language.values import FLOAT, INT, Vector, Word, choose, chunk
from demitasse.backends.kernels.products import ROWS, multiply, panel_vectors, tile_rows
from demitasse.backends.kernels.tuning import FLAT, Depth, Tuning
from demitasse.backends.kernels.windows import (
    ConvolutionFields,
    PaddedImages,
    WindowCode,
    WindowConvolution,
    Windows,
    WindowSchedule,
    for_each_window_tile,
    window_values,
)
from demitasse.backends.step import decline_if

BAND = 1024
"""Outputs whose products with windows are summed at a time; their gradients stay in a cache."""


@dataclass(frozen=True)
class DirectSchedule(WindowSchedule):
    """A convolution of images with few channels."""

    kernel: ClassVar[str] = "direct"
    depth: Depth = FLAT

    @cached_property
    def taps(self) -> int:
        """Numbers of a window."""
        return self.depth.taps * self.x[1] * math.prod(self.op.kernel)

    @cached_property
    def vectors(self) -> int:
        """Vectors of a panel of filters."""
        return panel_vectors(self.y[1], self.width, padded=True)

    @property
    def channels(self) -> int:
        """Filters of a vector: all that there are where these do not fill one."""
        return min(self.width, self.y[1])

    @property
    def panel(self) -> int:
        """Filters of a panel."""
        return self.vectors * self.width

    @property
    def most(self) -> int:
        return ROWS[self.width][self.vectors]

    @cached_property
    def firsts(self) -> np.ndarray:
        """The first filter of each vector of all panels, whose last vectors may be equal."""
        firsts = first_channels(self.y[1], self.channels)
        firsts += firsts[-1:] * (-len(firsts) % self.vectors)
        return np.array(firsts, np.int64)

    @cached_property
    def order(self) -> np.ndarray:
        """The filter of each element of a panel. Shape: (panels, filters of a panel)."""
        places = np.add.outer(self.firsts, np.arange(self.width))
        filters: np.ndarray = np.minimum(places, self.y[1] - 1)
        return filters.reshape(-1, self.panel)

    def weight_order(self, places: np.ndarray | None) -> np.ndarray:
        """Return the index of each weight of the panels, given those in C order, or None.

        Shape: (panels, taps, filters of a panel).
        """
        places = np.arange(self.y[1] * self.taps) if places is None else places
        by_filter = places.reshape(self.y[1], self.x[1], self.depth.taps, -1).swapaxes(1, 2)
        order: np.ndarray = by_filter.reshape(-1, self.taps)[self.order].transpose(0, 2, 1)
        return order


MOST_UNROLLED = 1 << 13
"""Products of a kernel's code at most; LLVM compiles some 10,000 of them in a second."""

MOST_SCHEDULED = 208
"""Products of a window's row that LLVM schedules together; its order of more is half as fast."""


def plan_direct(
    op: ops.Conv, x: ops.Shape, y: ops.Shape, tuning: Tuning, depth: Depth = FLAT, *,
    fewest: int = 0,
) -> DirectSchedule:  # fmt: skip
    """Return the schedule of a convolution with few input channels; shapes are (N, C, H, W).

    There are as many filters as a vector has floats, or at least ``fewest``.

    Raises:
        Declined: Channels or windows are unsupported.
    """
    tuning.require("few_inputs")
    fewest = fewest or tuning.width
    few = len(op.kernel) == 2 and op.group == 1 and x[1] < tuning.width and y[1] >= fewest
    decline_if(
        not few or max(op.kernel) == 1,
        f"direct convolution takes images of fewer than {tuning.width} channels to {fewest} or "
        "more, in one group, and windows of several pixels",
    )
    schedule = DirectSchedule(op, x, y, tuning, depth)
    tile = schedule.tile
    unrolled = len(schedule.tiles.cases) * tile.pixels * tile.taps * schedule.vectors
    message = f"{op.kernel[1]} taps in a row are {unrolled} products; code has {MOST_UNROLLED}"
    decline_if(unrolled > MOST_UNROLLED, message)
    return schedule


class PanelFields(Struct):
    """Panels of filters, or of sums of their gradients: panel after panel, tap after tap."""

    count: Word
    stride: Word
    """Elements from one panel to the next."""
    table: Address
    """Bytes to each vector, from the first filter and from the first channel of an output."""

    @classmethod
    def of(cls, schedule: DirectSchedule, taps: int) -> Values:
        """Return the values of panels with so many taps."""
        stride = taps * schedule.panel
        return cls.values(count=len(schedule.order), stride=stride, table=FLOAT * schedule.firsts)


@contextmanager
def each_panel(k: Kernel, f: PanelFields, vectors: int) -> Iterator[tuple[Word, Sequence[Word]]]:
    """Write a loop over the panels: the bytes from the first to each, and its vectors' entries."""
    with k.loop(f.count) as panel:
        firsts = k.load_words(f.table + panel.i * (vectors * INT), vectors)
        yield panel.i * f.stride * FLOAT, firsts


class DirectFields(ConvolutionFields):
    """A direct convolution."""

    panels: PanelFields


@DirectFields.kernel("direct")
def _kernel(k: Kernel, f: DirectFields, code: WindowCode, vectors: int, channels: int) -> None:
    """Write the kernel of vectors of some channels."""
    some = k.lane_mask(channels) if channels < k.width else None

    def body(windows: Windows, output: Word) -> None:
        with each_panel(k, f.panels, vectors) as (place, firsts):
            offsets = [k.load(f.offsets + at, some) for at in firsts]
            sums = _window_sums(k, f, code, windows, f.filters + place, offsets)
            for j, at in enumerate(firsts):
                then = code.rectifying(k, f.rectifier, at)
                for pixel, total in enumerate(sums[j::vectors]):
                    to = output + at + f.y.column_stride * (FLOAT * pixel)
                    k.store(then(total), to, some)

    for_each_window_tile(k, f, code, body)


def _window_sums(
    k: Kernel, f: DirectFields, code: WindowCode, windows: Windows, filters: Word,
    offsets: Sequence[Vector],
) -> list[Vector]:  # fmt: skip
    """Return the sums of a tile's windows times a panel's filters, pixel after pixel."""
    tile, zero, vectors = code.tile, k.constant(0.0), len(offsets)
    start, pixels = [*offsets] * tile.pixels, range(tile.pixels)
    (first, last), taps_bytes = windows.channels, code.rows * tile.taps * vectors * k.vector_bytes
    words = [filters + first * taps_bytes, windows.corner]
    with k.loop(last, first, vectors=start, words=words) as channel:
        filters, corner = channel.words
        words = [filters, windows.top, corner]
        with k.loop(code.rows, vectors=channel.vectors, words=words) as row:
            right, y, left = row.words
            seen = choose((y > -1) & (y < f.x.rows), left, windows.zeros)
            for tap in range(tile.taps):
                columns = [k.load(right + k.vector_bytes * j) for j in range(vectors)]
                places = [tile.stride * pixel + tile.dilation * tap for pixel in pixels]
                at = k.no_cse(seen)
                numbers = [at + FLOAT * one if one in windows.inside else zero for one in places]
                if tile.taps * len(start) > MOST_SCHEDULED:
                    # LLVM keeps this loop of one iteration, and schedules it by itself
                    with k.loop(k.no_cse(k.word(1)), vectors=row.vectors) as once:
                        multiply(k, once.vectors, numbers, columns)
                    row.vectors = once.vectors
                else:
                    multiply(k, row.vectors, numbers, columns)
                right = right + k.vector_bytes * vectors
            row.words = [right, y + f.down, left + f.down * f.x.row_stride * FLOAT]
        channel.vectors = row.vectors
        channel.words = [row.words[0], corner + f.x.channel_stride * FLOAT]
    return channel.vectors


class DirectConvolution(OrderedFilters, WindowConvolution):
    """A convolution of few channels, with an offset for each filter and perhaps an epilogue.

    Images that are read are in C order.

    Args:
        places: Index of each weight, filter after filter, if they have another order.

    Attributes:
        filters: The filters of each panel, tap after tap.
            Shape: (panels, taps, filters of a panel).
    """

    schedule: DirectSchedule

    def __init__(
        self, schedule: DirectSchedule, y: Images, then: Rectifier = NOTHING, *,
        places: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        need_layout(y.fits(schedule.channels), y)
        (n, c, h, w), taps = schedule.x, schedule.taps
        rectifier = then.numbers(max(schedule.y[1], schedule.width))
        OrderedFilters.__init__(self, schedule.weight_order(places), schedule.tuning)
        images = replace(Images.in_order((n, c, h, w)), channel_stride=h * w)  # planes as channels
        values = DirectFields.values(
            **window_values(schedule.op, images, y, schedule.tiles, schedule.depth),
            filters=self.filters,
            rectifier=rectifier,
            panels=PanelFields.of(schedule, taps),
        )
        code = schedule.code_with(then)
        kernel = _kernel(schedule.width, code, schedule.vectors, schedule.channels)
        WindowConvolution.__init__(self, schedule, kernel, values, rectifier)


class GradientFields(Struct):
    """The gradient of a direct convolution's filters."""

    x: ImageFields
    """The windows: images with zeros around them, by steps of the strides."""
    y: ImageFields
    """The gradient of the output."""
    bands: Word
    """Bands of the outputs of an image."""
    chunks: Word
    tap_table: Address
    """Bytes from a window's first tap to each."""
    taps: Word
    """Entries of the table."""
    panels: PanelFields
    sums: Output
    """Sums of the chunks."""
    chunk_bytes: Word
    """Bytes from one chunk's sums to the next's."""


@GradientFields.kernel("direct_gradient")
def _gradient_kernel(k: Kernel, f: GradientFields, taps: int, vectors: int) -> None:
    """Write the kernel of tiles of some taps; the table has whole tiles."""
    x_step, y_step = (images.column_stride * FLOAT for images in (f.x, f.y))
    zeros = [k.constant(0.0)] * (taps * vectors)
    with k.loop(f.chunks, *k.thread()) as mine:
        begin, end = chunk(f.y.images * f.bands, mine.i, f.chunks)
        with k.loop(end, begin) as band, each_panel(k, f.panels, vectors) as (panel, firsts):
            image = band.i // f.bands
            top, bottom = chunk(f.y.rows, band.i % f.bands, f.bands)
            with k.loop(f.taps, 0, taps) as tile:
                places = k.load_words(f.tap_table + tile.i * INT, taps)
                with k.loop(bottom, top, vectors=zeros) as row:
                    start = [images.row(image, row.i) for images in (f.x, f.y)]
                    with k.loop(f.y.columns, vectors=row.vectors, words=start) as pixel:
                        window, dy = pixel.words
                        columns = [k.load(dy + first) for first in firsts]
                        multiply(k, pixel.vectors, [window + at for at in places], columns)
                        pixel.words = [window + x_step, dy + y_step]
                    row.vectors = pixel.vectors
                sums = f.sums + mine.i * f.chunk_bytes + panel
                sums = sums + tile.i * (vectors * k.vector_bytes)
                targets = [sums + k.vector_bytes * at for at in range(len(zeros))]
                k.accumulate(list(zip(row.vectors, targets, strict=True)), band.i - begin)


class DirectGradient:
    """The gradients of a convolution's weights and bias.

    The bias is the weight of a tap that is 1 in every window.

    Attributes:
        sums: Sums of each chunk, for taps in whole tiles.
            Shape: (chunks, panels, taps, filters of a panel).
        nbytes: Bytes of the sums, and of images with zeros around them.
    """

    def __init__(
        self, schedule: DirectSchedule, y: Images, *, bias: bool, places: np.ndarray | None = None
    ) -> None:
        need_layout(y.fits(schedule.width), y)
        op, (n, c, *_), (_, _, *outputs) = schedule.op, schedule.x, schedule.y
        self.schedule = schedule
        self._padded = PaddedImages(op, schedule.x, schedule.tuning, more=int(bias))
        _, planes, rows, columns = self._padded.shape
        self._padded.planes[:, c:] = 1
        shape, area = (n, planes, outputs[0], outputs[1]), rows * columns
        windows = Images(shape, planes * area, op.stride[0] * columns, op.stride[1], area)
        taps = np.append(self._padded.taps, c * area)[: schedule.taps + bias]
        at_once = tile_rows(len(taps), schedule.most)
        taps = np.resize(taps, math.ceil(len(taps) / at_once) * at_once)
        bands = math.ceil(math.prod(outputs) / BAND)
        chunks, panels = min(schedule.tuning.threads, n * bands), len(schedule.order)
        self.sums = aligned(chunks * panels * len(taps) * schedule.panel)
        self.sums = self.sums.reshape(chunks, panels, len(taps), schedule.panel)
        self.nbytes = self.sums.nbytes + self._padded.planes.nbytes
        kernel = _gradient_kernel(schedule.width, at_once, schedule.vectors)
        values = GradientFields.values(
            x=ImageFields.of(windows),
            y=ImageFields.of(y),
            bands=bands,
            chunks=chunks,
            tap_table=FLOAT * taps,
            taps=len(taps),
            panels=PanelFields.of(schedule, len(taps)),
            sums=self.sums,
            chunk_bytes=self.sums[0].nbytes,
        )
        self._sum = BoundKernel(schedule.kernel, kernel, values, schedule.tuning)
        each = np.arange(self.sums[0].size).reshape(self.sums.shape[1:])
        # a filter that is in two vectors has the same sums in both
        own, tuning = each[:, : schedule.taps], schedule.tuning
        self._add_weights = part_sums(self.sums, schedule.weight_order(places), own, tuning)
        if bias:
            self._add_bias = part_sums(self.sums, schedule.order, each[:, schedule.taps], tuning)

    def __call__(
        self, source: np.ndarray, dy: np.ndarray, weight: np.ndarray, bias: np.ndarray | None
    ) -> None:
        """Write the gradients of the weights, in C order, and of the bias, (M,)."""
        self._padded(source)
        self._sum(self._padded.planes, dy)
        self._add_weights(self.sums, weight)
        if bias is not None:
            self._add_bias(self.sums, bias)
