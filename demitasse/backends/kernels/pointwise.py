"""Pointwise (1x1) convolution of images, which may be normalised and rectified on the way."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.epilogue import NOTHING, Rectifier, rectifying
from demitasse.backends.kernels.images import Images, first_channels
from demitasse.backends.kernels.language import structs
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.words import (
    FLOAT,
    INT,
    Vector,
    Word,
    choose,
    chunk,
    fma,
    minimum,
    rectified,
)
from demitasse.backends.kernels.products import ROWS, fill_panels, multiply
from demitasse.backends.kernels.tuning import TunedKernel, Tuning
from demitasse.backends.step import decline_if

PANEL = 2
"""Vectors of filters whose sums are in registers at a time."""

WIDEST = 2048
"""Channels of an input at most. The rows that are noted lie at a distance for so many."""

MOST_WASTE = 1.1
"""Pixels that are computed, as a multiple of those there are, up to which it pays."""

MOST_SPARE = 5
"""Products for each number beyond those that it needs, up to which it pays to have limits: the
library computes fewer, but has a pass over memory after them."""


@dataclass(frozen=True)
class PointwiseSchedule(TunedKernel):
    """A pointwise convolution. Threads divide the pixels, and where these are few the filters too.

    The shapes of input and output, ``x`` and ``y``, are (N, C, H, W).
    """

    kernel = "pointwise"

    x: tuple[int, ...]
    y: tuple[int, ...]
    tuning: Tuning

    @property
    def rows(self) -> int:
        """Pixels that are computed at a time."""
        return ROWS[self.width][PANEL]

    @property
    def pixels(self) -> int:
        """Pixels of all images."""
        return self.y[0] * self.y[2] * self.y[3]

    @cached_property
    def panels(self) -> list[int]:
        """First filter of each panel; the last begins early where they do not divide."""
        return first_channels(self.y[1], PANEL * self.width)

    @cached_property
    def divided(self) -> tuple[int, int]:
        """In how many parts pixels and filters are divided, of about equal work."""
        return min(self._divisions(), key=self._longest)

    def _divisions(self) -> Iterator[tuple[int, int]]:
        """Yield the ways to divide it into no more parts than there are threads."""
        for of_filters in range(1, min(self.tuning.threads, len(self.panels)) + 1):
            yield min(self.tuning.threads // of_filters, self.pixels), of_filters

    def _longest(self, divided: tuple[int, int]) -> tuple[int, int]:
        """Return what the largest part takes, and how often pixels are normalised."""
        of_pixels, of_filters = divided
        blocks = math.ceil(math.ceil(self.pixels / of_pixels) / self.rows)
        return blocks * math.ceil(len(self.panels) / of_filters), of_filters

    @property
    def waste(self) -> float:
        """Computed pixels per existing pixel."""
        return math.ceil(self.pixels / self.rows) * self.rows / self.pixels

    @property
    def spare(self) -> float:
        """Superfluous multiplications per number of the output."""
        filters = len(self.panels) * PANEL * self.width / self.y[1]
        return (self.waste * filters - 1) * self.x[1]


def plan_pointwise(op: ops.Conv, x: ops.Shape, y: ops.Shape, tuning: Tuning) -> PointwiseSchedule:
    """Return the schedule of a pointwise convolution; shapes are (N, C, H, W).

    Raises:
        Declined: The windows are unsupported, the convolution is small, or the library is faster.
    """
    tuning.require("pointwise")
    decline_if(
        not op.is_pointwise or len(op.kernel) != 2,
        "pointwise convolution takes windows of one pixel, without strides, in one group",
    )
    parts = PointwiseSchedule(x, y, tuning)
    fewest = PANEL * tuning.width
    decline_if(
        parts.pixels < parts.rows or not tuning.width <= x[1] <= WIDEST or y[1] < fewest,
        f"{parts.pixels} pixels, {x[1]} channels to {y[1]}; pointwise convolution takes "
        f"{parts.rows} pixels or more, {tuning.width} to {WIDEST} channels to {fewest} or more",
    )
    if "pointwise" in tuning.always:
        return parts
    # the library is faster there, though what it reads must be written before
    filter_bytes = x[1] * y[1] * FLOAT
    decline_if(
        filter_bytes > tuning.pixel_filter_bytes,
        f"filters of {filter_bytes >> 10} KiB, which are read for each few pixels; pointwise "
        f"convolution pays up to {tuning.pixel_filter_bytes >> 10} KiB",
    )
    decline_if(
        parts.waste > MOST_WASTE,
        f"{parts.pixels} pixels, {parts.rows} at a time; pointwise convolution pays where "
        "these divide well",
    )
    return parts


def check_norm_gain(parts: PointwiseSchedule) -> None:
    """Decline the normalisation of pixels that a pass of its own does faster.

    Few rows are computed at a time on AVX2, so that filters are read more often; that costs more
    than a pass over pixels in a cache.

    Raises:
        Declined: The pixels fit into a cache.
    """
    pixel_bytes = math.prod(parts.x) * FLOAT
    few = "pointwise" not in parts.tuning.always and parts.tuning.instructions == "avx2"
    decline_if(
        few and pixel_bytes <= parts.tuning.cached_bytes,
        f"pixels of {pixel_bytes >> 10} KiB; on AVX2 their normalisation on the way pays "
        f"beyond {parts.tuning.cached_bytes >> 10} KiB",
    )


def limits_pay(parts: PointwiseSchedule) -> bool:
    """Return whether results within limits are computed faster than by the library and a pass."""
    return "pointwise" in parts.tuning.always or parts.spare <= MOST_SPARE


LINE = 16
"""Floats of a line of the cache."""

ROW_BYTES = (WIDEST + LINE) * FLOAT
"""From one row that is noted to the next; a line more than a power of two, so that the same
channels of all rows do not compete for the same lines of the cache."""

REACH = {4: 2}
"""Floats of a vector -> rows that loads reach from one address; all of them if it is missing."""

UNROLLED = 2
"""Channels of a step of the innermost loop."""

NOTED = 4
"""Vectors of a pixel that a step normalises."""

AHEAD = 8
"""Prefetch distance, in channels, of a row of filters from the second cache."""


class PointwiseFields(structs.Struct):
    """A pointwise convolution."""

    x: structs.Address
    x_stride: Word
    """Elements from one pixel of the input to the next."""
    y: structs.Output
    y_stride: Word
    pixels: Word
    """Number of pixels, at least those of one register tile."""
    channels: Word
    """Channels of the input, at least a vector."""
    factors: structs.OptionalAddress
    """One factor for each channel of the input."""
    shifts: structs.OptionalAddress
    """One offset for each, added to the product."""
    filters: structs.Address
    """Filters: for each panel, channel after channel."""
    panels: Word
    panel_table: structs.Address
    """The first filter of each panel."""
    offsets: structs.Address
    """One offset for each channel of the output."""
    rectifier: structs.Address
    """Numbers of the epilogue: the slope of negative sums, or the limits."""
    scratch: structs.Scratch
    """Memory for the rows of all parts."""
    pixel_parts: Word
    filter_parts: Word


@PointwiseFields.kernel("pointwise")
def _kernel(k: Kernel, f: PointwiseFields, *, normed: bool, limited: bool) -> None:
    most = ROWS[k.width][PANEL]
    thread, threads = k.thread()
    begin, end = chunk(f.pixel_parts * f.filter_parts, thread, threads)
    rows = f.scratch + thread * (most * ROW_BYTES)
    with k.loop(end, begin) as part:
        first, last = chunk(f.pixels, part.i // f.filter_parts, f.pixel_parts)
        panel, behind = chunk(f.panels, part.i % f.filter_parts, f.filter_parts)
        with k.loop(last, first, most) as block:
            # the last block begins early where they do not divide; it computes the same again
            pixel = minimum(block.i, f.pixels - most)
            source, block_bytes = f.x + pixel * f.x_stride * FLOAT, f.x_stride * (most * FLOAT)
            _note_rows(k, f, source, rows, normed=normed)
            # as many bytes as will be read; what lies between two pixels is skipped
            step = f.channels * (most * UNROLLED * FLOAT) // (f.channels * (behind - panel))
            begin_ahead = source + block_bytes
            ahead = [begin_ahead, begin_ahead + f.channels * FLOAT]
            with k.loop(behind, panel, words=ahead) as one:
                output = f.y + pixel * f.y_stride * FLOAT
                now = one.words
                one.words = _multiply(k, f, one.i, rows, output, now, step, limited=limited)


def _note_rows(k: Kernel, f: PointwiseFields, source: Word, rows: Word, *, normed: bool) -> None:
    """Write the normalisation of a few pixels, or a copy of them."""
    end, none = f.channels * FLOAT, k.constant(0.0)  # of what is below 0
    several = k.vector_bytes * NOTED
    middle = end // several * several

    def vector(pixel: Word, target: Word, at: Word) -> None:
        value = k.load(pixel + at)
        if normed:
            value = fma(value, k.load(f.factors + at), k.load(f.shifts + at))
            value = rectified(value, none)
        k.store(value, target + at)

    with k.loop(ROWS[k.width][PANEL], words=[source, rows]) as row:
        pixel, target = row.words
        with k.loop(middle, 0, several) as channel:
            for place in range(0, several, k.vector_bytes):
                vector(pixel, target, channel.i + place)
        with k.loop(end, middle, k.vector_bytes) as channel:
            vector(pixel, target, minimum(channel.i, end - k.vector_bytes))
        row.words = [pixel + f.x_stride * FLOAT, target + ROW_BYTES]


def _multiply(
    k: Kernel, f: PointwiseFields, panel: Word, rows: Word, output: Word,
    following: Sequence[Word], step: Word, *, limited: bool,
) -> list[Word]:  # fmt: skip
    """Write the products of the noted rows and one panel of filters.

    ``following`` has the address in the next pixels, which are prefetched ``step`` by step of
    bytes, and the address where the channels of their pixel end. Return both for the next panel.
    """
    most, panel_bytes = ROWS[k.width][PANEL], PANEL * k.vector_bytes
    reach = REACH.get(k.width, most)
    place = k.load_word(f.panel_table + panel * INT) * FLOAT
    offsets = [k.load(f.offsets + place + k.vector_bytes * j) for j in range(PANEL)]
    begin = f.filters + panel * f.channels * panel_bytes
    middle = begin + f.channels // UNROLLED * (UNROLLED * panel_bytes)
    end = begin + f.channels * panel_bytes
    pixel_bytes = f.x_stride * FLOAT
    gap = pixel_bytes - f.channels * FLOAT

    def steps(
        sums: list[Vector], words: list[Word], start: Word, stop: Word, count: int
    ) -> tuple[list[Vector], list[Word]]:
        with k.loop(stop, start, panel_bytes * count, vectors=sums, words=words) as loop:
            totals, [*bases, ahead, edge] = loop.vectors, loop.words
            k.prefetch(ahead, cache=2)
            for channel in range(count):
                filters = loop.i + panel_bytes * channel
                places = [filters + k.vector_bytes * j for j in range(PANEL)]
                for one in places:
                    k.prefetch(one + panel_bytes * AHEAD)
                columns = [k.load(one) for one in places]
                numbers = [
                    bases[i // reach] + (ROW_BYTES * (i % reach) + FLOAT * channel)
                    for i in range(most)
                ]
                multiply(k, totals, numbers, columns)
            ahead = ahead + step
            over = ahead >= edge
            ahead, edge = ahead + choose(over, gap, 0), edge + choose(over, pixel_bytes, 0)
            loop.words = [*(base + FLOAT * count for base in bases), ahead, edge]
        return loop.vectors, loop.words

    bases = [k.no_cse(rows + ROW_BYTES * i) if i else rows for i in range(0, most, reach)]
    sums, words = steps(offsets * most, [*bases, *following], begin, middle, UNROLLED)
    sums, words = steps(sums, words, middle, end, 1)
    then = rectifying(k, f.rectifier, None, limited=limited)
    with_row = [(i, j) for i in range(most) for j in range(PANEL)]
    for (i, j), total in zip(with_row, sums, strict=True):
        target = output + f.y_stride * FLOAT * i + (place + k.vector_bytes * j)
        k.store(then(total), target)
    return words[len(bases) :]


class PointwiseConvolution:
    """y = filters * max(x * factor + shift, 0) + offset, or filters * x + offset, then a rectifier.

    NaN stays, and minus infinity becomes it in ReLU, before the convolution too.

    ``normed`` are one factor and one offset for each channel of the input, read in each call; None
    where pixels are taken as they are.

    Attributes:
        scratch_size: Elements of scratch memory for a call.
        filters: The filters of each panel, channel after channel.
            Shape: (panels, C, filters of a panel).

    Raises:
        ValueError: The pixels of ``x`` or ``y`` do not follow evenly.
    """

    def __init__(
        self,
        parts: PointwiseSchedule,
        x: Images,
        y: Images,
        normed: tuple[np.ndarray, np.ndarray] | None,
        then: Rectifier = NOTHING,
    ) -> None:
        if not (x.is_rows and y.is_rows):
            message = f"{x} and {y} were given; give images whose pixels follow evenly"
            raise ValueError(message)
        self.parts, panel = parts, PANEL * parts.width
        self._kernel = _kernel(parts.width, normed=normed is not None, limited=then.limited)
        factors, shifts = normed or (np.zeros(0, np.float32),) * 2
        self.scratch_size = parts.tuning.threads * parts.rows * ROW_BYTES // FLOAT
        channels = parts.x[1]
        size = len(parts.panels) * channels * panel
        self.filters = aligned(size).reshape(-1, channels, panel)
        self._none = aligned(parts.y[1])
        of_pixels, of_filters = parts.divided
        self._arguments = structs.Arguments(
            PointwiseFields.values(
                x_stride=x.column_stride,
                y_stride=y.column_stride,
                pixels=parts.pixels,
                channels=channels,
                factors=factors if factors.size else None,
                shifts=shifts if shifts.size else None,
                filters=self.filters,
                panels=len(parts.panels),
                panel_table=np.array(parts.panels, np.int64),
                rectifier=then.numbers(),
                pixel_parts=of_pixels,
                filter_parts=of_filters,
            )
        )

    def update(self, weights: np.ndarray) -> None:
        """Copy new weights, given in C order."""
        fill_panels(self.filters, weights, self.parts.panels)

    @property
    def filters_nbytes(self) -> int:
        """Bytes of the filters that it holds."""
        return self.filters.nbytes

    def __call__(
        self,
        source: np.ndarray,
        target: np.ndarray,
        offsets: np.ndarray | None,
        scratch: np.ndarray,
    ) -> None:
        """Convolve, and normalise before that where there are factors.

        ``offsets`` are one for each channel of the output; None for zeros.
        """
        offsets = self._none if offsets is None else offsets
        each = {"x": source, "y": target, "offsets": offsets, "scratch": scratch}
        self._arguments.run(self._kernel, self.parts.tuning.threads, each)

    @property
    def code(self) -> str:
        """Name of the code."""
        return self.parts.code
