"""A pointwise convolution of images, which may be normalised and rectified on the way."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.epilogue import NOTHING, Rectifier, rectifying
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import compiled
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import (
    RUNTIME,
    Address,
    Arguments,
    OptionalAddress,
    Output,
    Scratch,
    Struct,
)
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
from demitasse.backends.kernels.pointwise import PANEL, WIDEST, PointwiseSchedule
from demitasse.backends.kernels.products import ROWS, fill_panels, multiply

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


class PointwiseFields(Struct):
    """A pointwise convolution."""

    x: Address
    """Address of the first pixel of the input."""
    x_stride: Word
    """Elements from one of its pixels to the next."""
    y: Output
    """Address of the first pixel of the output."""
    y_stride: Word
    """Elements from one of its pixels to the next."""
    pixels: Word
    """Number of pixels, at least those of one register tile."""
    channels: Word
    """Channels of the input, at least a vector."""
    factors: OptionalAddress
    """Address of one factor for each channel of the input."""
    shifts: OptionalAddress
    """Address of one offset for each, added to the product."""
    filters: Address
    """Address of the filters: for each panel, channel after channel."""
    panels: Word
    """Number of panels of filters."""
    panel_table: Address
    """Address of the first filter of each."""
    offsets: Address
    """Address of one offset for each channel of the output."""
    rectifier: Address
    """Address of the rectifier's numbers: the slope of negative sums, or the limits."""
    scratch: Scratch
    """Address of memory for the rows of all parts."""
    pixel_parts: Word
    """Number of parts of the pixels."""
    filter_parts: Word
    """Number of parts of the panels."""


@cache
def _kernel(width: int, *, normed: bool, limited: bool) -> int:
    """Return the address of the kernel."""
    name = f"pointwise{'' if normed else '_plain'}{'_limited' if limited else ''}{width}"

    def module(of: Any) -> None:
        _write(of, name, width, normed=normed, limited=limited)

    return compiled(name, module, name)[name]


def _write(module: Any, name: str, width: int, *, normed: bool, limited: bool) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    f, most = PointwiseFields.read(k), ROWS[width][PANEL]
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
    k.done()


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
    k: Kernel,
    f: PointwiseFields,
    panel: Word,
    rows: Word,
    output: Word,
    following: Sequence[Word],
    step: Word,
    *,
    limited: bool,
) -> list[Word]:
    """Write the products of the rows that were noted and one panel of filters.

    Args:
        k: The kernel.
        f: Its fields.
        panel: The panel.
        rows: Address of the rows.
        output: Address of the first output pixel.
        following: Address in the pixels that come next, which are fetched on the way, and where
            the channels of the present one of them end.
        step: Bytes of a step.
        limited: True if outputs are clamped.

    Returns:
        The same for the next panel.
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

    Args:
        parts: The convolution.
        x: The input, whose pixels follow evenly.
        y: The output, too.
        normed: One factor for each channel of the input, and their offsets; read in each call. None
            where pixels are taken as they are. Shapes: (C,).
        then: Epilogue of the sums.

    Attributes:
        scratch_size: Elements of scratch memory for a call.
        filters: The filters of each panel, channel after channel.
            Shape: (panels, C, filters of a panel).

    Raises:
        ValueError: The pixels do not follow evenly.
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
        of_pixels, of_filters = parts.divided
        self._arguments = Arguments(
            PointwiseFields.values(
                x=RUNTIME,
                x_stride=x.column_stride,
                y=RUNTIME,
                y_stride=y.column_stride,
                pixels=parts.pixels,
                channels=channels,
                factors=factors if factors.size else None,
                shifts=shifts if shifts.size else None,
                filters=self.filters,
                panels=len(parts.panels),
                panel_table=np.array(parts.panels, np.int64),
                offsets=RUNTIME,
                rectifier=then.numbers(),
                scratch=RUNTIME,
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
        self, source: np.ndarray, target: np.ndarray, offsets: np.ndarray, scratch: np.ndarray
    ) -> None:
        """Convolve, and normalise before that where there are factors.

        Args:
            source: The images, in the memory that ``x`` describes.
            target: The output, in the memory that ``y`` describes.
            offsets: One for each channel of the output, contiguous.
            scratch: Memory for ``scratch_size`` elements.
        """
        each = {"x": source, "y": target, "offsets": offsets, "scratch": scratch}
        self._arguments.run(self._kernel, self.parts.tuning.threads, each)

    @property
    def code(self) -> str:
        """Name of the code."""
        return self.parts.code
