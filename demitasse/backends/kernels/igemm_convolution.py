"""Convolutions and their gradients by implicit GEMM: group by group, phase by phase.

The gradient of the filters is a kernel of its own: a sum over the windows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise, product
from typing import NamedTuple

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.epilogue import NOTHING, Rectifier
from demitasse.backends.kernels.igemm import (
    BLOCK_BYTES,
    ENTRY_BYTES,
    ROW_BYTES,
    UNROLLED,
    IgemmSchedule,
    ImplicitGemm,
    ProductFields,
    copy_windows,
    list_windows,
    product_values,
)
from demitasse.backends.kernels.image_fields import ImageFields
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import call_recorder, structs
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.values import (
    FLOAT,
    INT,
    Condition,
    Vector,
    Word,
    choose,
    chunk,
)
from demitasse.backends.kernels.products import multiply

MOST_PIXELS = 192
"""Outputs whose windows are copied at a time, at most; a panel of so many rows stays in the first
cache."""


class _Part(NamedTuple):
    """A product of one group, and where its source and target begin, in elements."""

    gemm: ImplicitGemm
    group: int
    first: int  # channel of the target
    taps: Sequence[int]  # numbers of the convolution's taps
    source: int
    target: int


class IgemmConvolution:
    """A convolution, or the gradient of its input, by products.

    Attributes:
        filters: The filters of all products.
        nbytes: Bytes of the filters.
        scratch_size: Elements of scratch memory for a call.
    """

    def __init__(
        self, schedule: IgemmSchedule, parts: Sequence[_Part], *, back: bool, by_tap: bool
    ) -> None:
        self.schedule, self._parts, self._back, self._by_tap = schedule, parts, back, by_tap
        self.scratch_size = max(part.gemm.scratch_size for part in parts)
        ends = [*accumulate(part.gemm.size for part in parts)]
        self.filters = aligned(ends[-1])
        self.nbytes = self.filters.nbytes
        self._filters = [self.filters[a:b] for a, b in pairwise([0, *ends])]

    def update(self, weights: np.ndarray) -> None:
        """Copy new weights, in C order.

        Shape: (G, M / G, C / G, taps), or (G, M / G, taps, C / G) ``by_tap``.
        """
        one, n = self.schedule, self.schedule.merged
        channels, m = one.channels // n, one.filters // n
        last = (len(one.taps), channels) if self._by_tap else (channels, len(one.taps))
        size = one.filters * math.prod(last) * (1 + max(part.group for part in self._parts))
        by_group = weights[:size].reshape(-1, n, m, *last)
        if self._by_tap:
            by_group = by_group.swapaxes(3, 4)
        if n > 1:
            own, by_group = by_group, np.zeros((len(by_group), n, m, n, *last), np.float32)
            for group in range(n):
                by_group[:, group, :, group] = own[:, group]
        by_group = by_group.reshape(-1, one.filters, one.channels, len(one.taps))
        for part, filters in zip(self._parts, self._filters, strict=True):
            own = by_group[part.group]
            if len(part.taps) < own.shape[2]:
                own = own[:, :, part.taps]
            part.gemm.pack(own.swapaxes(0, 1) if self._back else own, filters)

    def __call__(
        self,
        source: np.ndarray,
        target: np.ndarray,
        offsets: np.ndarray | None,
        added: np.ndarray | None,
        scratch: np.ndarray,
    ) -> None:
        """Convolve, with one offset for each channel of the target; None for zeros.

        ``added``, in the layout of the target, is added before the rectifier; None for nothing.
        """
        for part, filters in zip(self._parts, self._filters, strict=True):
            own = None if offsets is None else offsets[part.first :]
            more = None if added is None else added[part.target :]
            part.gemm(source[part.source :], target[part.target :], filters, own, scratch, more)

    def take_slopes(self, slopes: np.ndarray) -> None:
        """Take factors of negative sums, one for each channel of the target."""
        for part in self._parts:
            part.gemm.slopes[...] = slopes[part.first : part.first + len(part.gemm.slopes)]


def _groups(schedule: IgemmSchedule, x: Images, y: Images) -> Iterator[tuple[Images, Images]]:
    """Yield input and output of each group; those of all groups have the same layouts."""
    for _ in range(x.shape[1] // schedule.channels):
        yield _of_group(x, schedule.channels), _of_group(y, schedule.filters)


def _of_group(images: Images, channels: int) -> Images:
    n, _, h, w = images.shape
    return replace(images, shape=(n, channels, h, w), block=channels, block_stride=0)


def igemm_forward(
    schedule: IgemmSchedule,
    x: Images,
    y: Images,
    then: Rectifier = NOTHING,
    *,
    adds: bool = False,
    by_tap: bool = False,
) -> IgemmConvolution:
    """Return the convolution of ``x``, with its rectifier; see :class:`ImplicitGemm`.

    ``by_tap`` says how the weights lie; see :meth:`IgemmConvolution.update`.
    """
    taps, m = range(len(schedule.taps)), schedule.filters
    parts = [
        _Part(
            ImplicitGemm(schedule, *images, then, adds=adds),
            group, group * m, taps, group * schedule.channels, group * m,
        )
        for group, images in enumerate(_groups(schedule, x, y))
    ]  # fmt: skip
    return IgemmConvolution(schedule, parts, back=False, by_tap=by_tap)


def igemm_input_gradient(
    schedule: IgemmSchedule, x: Images, y: Images, *, by_tap: bool = False
) -> IgemmConvolution:
    """Return the gradient of the input ``x`` from that of the output ``y``.

    For each phase of the strides, the pixels of the input are a convolution of the gradients of the
    outputs, by the taps that reach these pixels; where none does they are zeros.
    """
    parts = []
    down, right, deep = schedule.step
    for group, (one_x, one_y) in enumerate(_groups(schedule, x, y)):
        n, channels, rows, columns = one_x.shape
        for first in product(range(down), range(right), range(deep)):
            h, w, d = (
                -(-(end - at) // step)
                for end, at, step in zip(
                    (rows, columns, x.planes), first, schedule.step, strict=True
                )
            )
            if min(h, w, d) < 1:
                continue
            away = [[at - one for at, one in zip(first, tap, strict=True)] for tap in schedule.taps]
            reached = {
                number: (one[0] // down, one[1] // right, one[2] // deep)
                for number, one in enumerate(away)
                if not any(at % step for at, step in zip(one, schedule.step, strict=True))
            }
            images = replace(
                one_x,
                shape=(n, channels, h, w),
                row_stride=one_x.row_stride * down,
                column_stride=one_x.column_stride * right,
                planes=d,
                plane_stride=one_x.plane_stride * deep,
            )
            turned = replace(
                schedule, taps=(*reached.values(),), step=(1, 1, 1), channels=schedule.filters,
                filters=channels, pixels=n * d * h * w,
            )  # fmt: skip
            begin = first[0] * x.row_stride + first[1] * x.column_stride
            begin += first[2] * x.plane_stride
            parts.append(
                _Part(
                    ImplicitGemm(turned, one_y, images), group, group * channels, [*reached],
                    group * schedule.filters, group * channels + begin,
                )
            )  # fmt: skip
    return IgemmConvolution(schedule, parts, back=True, by_tap=by_tap)


class GradientFields(ProductFields):
    """The gradient of the filters; ``y`` has the gradients of the outputs."""

    filters: structs.Output
    """Gradient of the filters: term after term, filters side by side."""
    filter_bytes: Word
    """Bytes from one term to the next."""
    offsets: structs.OptionalAddress
    """Gradient of the offsets."""


@GradientFields.kernel("igemm_gradient")
def _kernel(k: Kernel, f: GradientFields, rows: int, vectors: int, *, deep: bool) -> None:
    panel_bytes = vectors * k.vector_bytes
    thread, threads = k.thread()
    begin, end = chunk(f.parts * f.filter_parts, thread, threads)
    buffer = f.scratch + thread * f.scratch_bytes
    entries = buffer + f.most_rows * ROW_BYTES
    columns = entries + f.most_rows * ENTRY_BYTES
    nowhere = columns + f.most_rows * panel_bytes
    pixels = f.images * f.y_planes * f.y.rows * f.y.columns
    times = (pixels + (f.most_rows - 1)) // f.most_rows
    with k.loop(end, begin) as part:
        first, last = chunk(f.block_count, part.i // f.filter_parts, f.parts)
        panel, behind = chunk(f.panels, part.i % f.filter_parts, f.filter_parts)
        with k.loop(times) as some:
            start, stop = chunk(pixels, some.i, times)
            count = stop - start
            list_windows(k, f, start, count, entries, nowhere, nowhere, panel_bytes, deep=deep)
            with k.loop(last, first) as block:
                *copied, term = k.load_words(f.blocks + block.i * BLOCK_BYTES, 5)
                copy_windows(k, f, copied, entries, buffer, count, deep=deep)
                length = copied[1] * copied[3]
                with k.loop(behind, panel) as one:
                    place = one.i * panel_bytes
                    _copy_panel(k, f, one.i, entries, columns, count, vectors)
                    with k.when((f.offsets > 0) & (block.i < 1)):
                        _sum_offsets(k, f, one.i, columns, count, some.i, vectors)
                    with k.loop((length + (rows - 1)) // rows) as tile:
                        row = tile.i * rows
                        target = f.filters + (term + row) * f.filter_bytes + place
                        sums = _multiply(k, buffer + row * FLOAT, columns, count, rows, vectors)
                        own = [
                            choose(row + i < length, target + f.filter_bytes * i, nowhere)
                            for i in range(rows)
                        ]
                        _add(k, f, sums, own, one.i < f.whole, some.i)


def _copy_panel(
    k: Kernel, f: GradientFields, panel: Word, entries: Word, columns: Word, count: Word,
    vectors: int,
) -> None:  # fmt: skip
    """Copy some channels of the gradients of outputs; the last panel is padded with zeros."""
    panel_bytes = vectors * k.vector_bytes
    some = [k.lane_mask(f.rest - k.width * j) for j in range(vectors)]
    with k.cases(choose(panel < f.whole, 1, 0)) as case:
        for whole in (1, 0):
            case(whole)
            with k.loop(count, words=[entries + 3 * INT, columns]) as one:
                entry, target = one.words
                source = k.load_word(entry) + panel * panel_bytes
                for j in range(vectors):
                    at = source + k.vector_bytes * j
                    value = k.load(at) if whole else k.masked_load(at, some[j])
                    k.store(value, target + k.vector_bytes * j)
                one.words = [entry + ENTRY_BYTES, target + panel_bytes]


def _sum_offsets(
    k: Kernel, f: GradientFields, panel: Word, columns: Word, count: Word, again: Word,
    vectors: int,
) -> None:  # fmt: skip
    """Add the copied gradients to those of the offsets; write them unless ``again``."""
    panel_bytes = vectors * k.vector_bytes
    with k.loop(count, vectors=[k.constant(0.0)] * vectors, words=[columns]) as one:
        [at] = one.words
        one.vectors = [sum_ + k.load(at + k.vector_bytes * j) for j, sum_ in enumerate(one.vectors)]
        one.words = [at + panel_bytes]
    for j, total in enumerate(one.vectors):
        left = choose(panel < f.whole, vectors * k.width, f.rest) - k.width * j
        some, at = k.lane_mask(left), f.offsets + panel * panel_bytes + k.vector_bytes * j
        before = choose(again > 0, k.masked_load(at, some), k.constant(0.0))
        k.masked_store(total + before, at, some)


def _multiply(
    k: Kernel, source: Word, columns: Word, count: Word, rows: int, vectors: int
) -> list[Vector]:
    """Return the sums over the copied windows, for some terms and a panel."""
    panel_bytes = vectors * k.vector_bytes
    middle = columns + count // UNROLLED * (UNROLLED * panel_bytes)

    def steps(
        sums: list[Vector], left: Word, begin: Word, end: Word, unrolled: int
    ) -> tuple[list[Vector], Word]:
        with k.loop(end, begin, panel_bytes * unrolled, vectors=sums, words=[left]) as loop:
            totals, [left] = loop.vectors, loop.words
            for step in range(unrolled):
                right = loop.i + panel_bytes * step
                gradients = [k.load(right + k.vector_bytes * j) for j in range(vectors)]
                numbers = [left + (ROW_BYTES * step + FLOAT * i) for i in range(rows)]
                multiply(k, totals, numbers, gradients)
            loop.words = [left + ROW_BYTES * unrolled]
        return loop.vectors, loop.words[0]

    sums, left = steps([k.constant(0.0)] * (rows * vectors), source, columns, middle, UNROLLED)
    return steps(sums, left, middle, columns + count * panel_bytes, 1)[0]


def _add(
    k: Kernel, f: GradientFields, sums: Sequence[Vector], rows: Sequence[Word], whole: Condition,
    again: Word,
) -> None:  # fmt: skip
    """Add sums to rows of the filters' gradient; write them unless ``again``."""
    vectors = len(sums) // len(rows)
    places = [row + k.vector_bytes * j for row in rows for j in range(vectors)]
    with k.cases(choose(whole, 1, 0)) as case:
        case(1)
        for total, place in zip(sums, places, strict=True):
            k.store(choose(again > 0, total + k.load(place), total), place)
        case(0)
        some = [k.lane_mask(f.rest - k.width * j) for j in range(vectors)]
        for i, (total, place) in enumerate(zip(sums, places, strict=True)):
            before = k.masked_load(place, some[i % vectors])
            k.masked_store(choose(again > 0, total + before, total), place, some[i % vectors])


class FilterGradient:
    """The gradients of the filters and offsets of a group.

    Attributes:
        size: Elements of the filters' gradient.
        scratch_size: Elements of scratch memory for a call.
    """

    def __init__(self, schedule: IgemmSchedule, x: Images, y: Images) -> None:
        self.schedule = schedule
        self.size = len(schedule.taps) * schedule.channels * schedule.filters
        blocks = schedule.blocks(in_place=False)
        longest = max(taps * channels for _, taps, _, channels, _ in blocks)
        self._kernel = _kernel(
            schedule.width, schedule.rows_of(longest), schedule.vectors,
            deep=schedule.is_deep(x, y),
        )  # fmt: skip
        pixels = min(MOST_PIXELS, schedule.pixels)
        values, self.scratch_size = product_values(schedule, blocks, x, y, pixels, schedule.panel)
        parts, filter_parts = schedule.divide(len(blocks))
        self._arguments = structs.Arguments(
            GradientFields.values(
                **values,
                x=ImageFields.of(x),
                y=ImageFields.of(y),
                filter_bytes=schedule.filters * FLOAT,
                parts=parts,
                filter_parts=filter_parts,
            )
        )

    def __call__(
        self,
        source: np.ndarray,
        dy: np.ndarray,
        filters: np.ndarray,
        offsets: np.ndarray | None,
        scratch: np.ndarray,
    ) -> None:
        """Write the gradients of the filters and, unless None, of the offsets."""
        each = {"x.at": source, "y.at": dy, "filters": filters, "offsets": offsets}
        threads = self.schedule.tuning.threads
        self._arguments.run(self._kernel, threads, {**each, "scratch": scratch})


class IgemmFilterGradient:
    """The gradients of the filters and offsets of a convolution.

    Attributes:
        strides: Elements from one group, filter, channel and, for each axis, tap to the next, as
            the gradient of the filters is written.
        scratch_size: Elements of scratch memory for a call.
    """

    def __init__(self, schedule: IgemmSchedule, op: ops.Conv, x: Images, y: Images) -> None:
        self.schedule = schedule
        self._groups = [FilterGradient(schedule, *images) for images in _groups(schedule, x, y)]
        each = schedule.filters * schedule.channels
        taps = [math.prod(op.kernel[axis + 1 :]) for axis in range(len(op.kernel))]
        self.strides = self._groups[0].size, 1, schedule.filters, *(each * tap for tap in taps)
        self.scratch_size, self._merged = self._groups[0].scratch_size, None
        if (n := schedule.merged) > 1:
            area, c = math.prod(op.kernel), schedule.channels // n
            self.strides = schedule.filters // n * c * area, c * area, area, *taps
            self._merged = aligned(len(self._groups) * self._groups[0].size)

    def __call__(
        self,
        source: np.ndarray,
        dy: np.ndarray,
        filters: np.ndarray,
        offsets: np.ndarray | None,
        scratch: np.ndarray,
    ) -> None:
        """Write the gradients of the filters and, unless None, of the offsets."""
        one = self.schedule
        for group, gradient in enumerate(self._groups):
            own = None if offsets is None else offsets[group * one.filters :]
            into = (filters if self._merged is None else self._merged)[group * gradient.size :]
            x, y = source[group * one.channels :], dy[group * one.filters :]
            gradient(x, y, into, own, scratch)
        if self._merged is not None:
            call_recorder.call(self._take_groups, self._merged, filters)

    def _take_groups(self, merged: np.ndarray, filters: np.ndarray) -> None:
        """Write the gradients of the filters, of which each belongs to the channels of a group."""
        one, n = self.schedule, self.schedule.merged
        c, m = one.channels // n, one.filters // n
        by_tap = merged.reshape(len(self._groups), -1, n, c, n, m)
        own = by_tap.diagonal(axis1=2, axis2=4).transpose(0, 4, 3, 2, 1)
        filters[: own.size].reshape(own.shape)[...] = own
