"""Convolutions and their gradients by implicit GEMM, phase by phase of the strides.

The gradient of the filters is a kernel of its own: a sum over the windows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise, product
from operator import mul
from typing import NamedTuple

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.bound import BoundKernel
from demitasse.backends.kernels.epilogue import NOTHING, Rectifier
from demitasse.backends.kernels.filter_packing import Gather
from demitasse.backends.kernels.igemm import (
    BLOCK_BYTES,
    ENTRY_BYTES,
    ROW_BYTES,
    UNROLLED,
    IgemmSchedule,
    ImplicitGemm,
    Panels,
    Part,
    ProductFields,
    copy_tiles,
    copy_windows,
    each_part,
    list_windows,
    product_values,
    write_sums,
)
from demitasse.backends.kernels.images import ImageFields, Images
from demitasse.backends.kernels.language import call_recorder, structs
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.values import FLOAT, INT, Word, choose, chunk
from demitasse.backends.kernels.products import Masks, column_masks, for_each_panel, product_sums

MOST_PIXELS = 196
"""Outputs whose windows are copied at a time, at most: an image of 14x14, or four of 7x7. A panel
of so many rows stays in the first cache."""

TILED_PANELS = 8
"""Panels of filters from which on windows of one tap are copied tile after tile."""


class _Phase(NamedTuple):
    """A product: all outputs, or pixels of the input that are a stride apart."""

    gemm: ImplicitGemm
    taps: Sequence[int]  # numbers of the convolution's taps
    first: int  # elements of the target before the first pixel


class IgemmConvolution:
    """A convolution, or the gradient of its input, by products.

    Args:
        columns: Columns of the target that a product writes side by side, as channels of a pixel.

    Attributes:
        filters: The filters of all products.
        recorded: Methods that record what they run, as a call of the kernel does.
        nbytes: Bytes of the filters.
        scratch_size: Elements of scratch memory for a call.
    """

    recorded = ("update",)

    def __init__(
        self, schedule: IgemmSchedule, phases: Sequence[_Phase], *, back: bool, by_tap: bool,
        columns: int = 1,
    ) -> None:  # fmt: skip
        self.schedule, self._phases, self._back, self._by_tap = schedule, phases, back, by_tap
        self._columns = columns
        self._offsets = aligned(columns * schedule.channels if columns > 1 else 0)
        self.scratch_size = max(phase.gemm.scratch_size for phase in phases)
        ends = [*accumulate(phase.gemm.size for phase in phases)]
        self.filters = aligned(ends[-1])
        self.nbytes = self.filters.nbytes
        self._filters = [self.filters[a:b] for a, b in pairwise([0, *ends])]
        # otherwise a kernel packs the weights as they lie
        self._by_numpy = schedule.merged > 1 or by_tap or (back and len(schedule.taps) > 1)

    def update(self, weights: np.ndarray) -> None:
        """Copy new weights, in C order.

        Shape: (G, M / G, C / G, taps), or (G, M / G, taps, C / G) ``by_tap``.
        """
        if self._by_numpy:
            call_recorder.call(self._update, weights)
        else:
            self._update(weights)

    def _update(self, weights: np.ndarray) -> None:
        one, n = self.schedule, self.schedule.merged
        channels, m = one.channels // n, one.filters // n
        last = (len(one.taps), channels) if self._by_tap else (channels, len(one.taps))
        size = one.groups * one.filters * math.prod(last)
        by_group = weights[:size].reshape(-1, n, m, *last)
        if self._by_tap:
            by_group = by_group.swapaxes(3, 4)
        if n > 1:
            own, by_group = by_group, np.zeros((len(by_group), n, m, n, *last), np.float32)
            for group in range(n):
                by_group[:, group, :, group] = own[:, group]
        by_group = by_group.reshape(-1, one.filters, one.channels, len(one.taps))
        for phase, filters in zip(self._phases, self._filters, strict=True):
            packed = filters.reshape(one.groups, -1)
            for own, into in zip(by_group, packed, strict=True):
                some = own[:, :, phase.taps] if len(phase.taps) < own.shape[2] else own
                phase.gemm.pack(self._turned(some) if self._back else some, into)

    def _turned(self, weights: np.ndarray) -> np.ndarray:
        """Exchange filters and channels. Shapes: (M, C, T) -> (columns * C, M, T / columns)."""
        m, c, taps = weights.shape
        by_column = weights.reshape(m, c, taps // self._columns, self._columns)
        return by_column.transpose(3, 1, 0, 2).reshape(self._columns * c, m, by_column.shape[2])

    def __call__(
        self, source: np.ndarray, target: np.ndarray, offsets: np.ndarray | None,
        added: np.ndarray | None, scratch: np.ndarray,
    ) -> None:  # fmt: skip
        """Convolve, with one offset for each channel of the target; None for zeros.

        ``added``, in the layout of the target, is added before the rectifier; None for nothing.
        """
        if offsets is not None and self._columns > 1:
            call_recorder.call(self._repeat, offsets, uses_blas=False)
            offsets = self._offsets
        for phase, filters in zip(self._phases, self._filters, strict=True):
            phase.gemm(source, target[phase.first :], filters, offsets, scratch, added)

    def _repeat(self, offsets: np.ndarray) -> None:
        """Write the offsets of the columns."""
        channels = self.schedule.channels
        self._offsets.reshape(self._columns, channels)[...] = offsets[:channels]

    def take_slopes(self, slopes: np.ndarray) -> None:
        """Take factors of negative sums, one for each channel of the target."""
        for phase in self._phases:
            phase.gemm.slopes[...] = slopes[: len(phase.gemm.slopes)]


def igemm_forward(
    schedule: IgemmSchedule, x: Images, y: Images, then: Rectifier = NOTHING, *, adds: bool = False,
    by_tap: bool = False,
) -> IgemmConvolution:  # fmt: skip
    """Return the convolution of ``x``, with its rectifier; see :class:`ImplicitGemm`.

    ``by_tap`` says how the weights lie; see :meth:`IgemmConvolution.update`.
    """
    gemm = ImplicitGemm(schedule, x, y, then, adds=adds)
    phases = [_Phase(gemm, range(len(schedule.taps)), 0)]
    return IgemmConvolution(schedule, phases, back=False, by_tap=by_tap)


def igemm_input_gradient(
    schedule: IgemmSchedule, x: Images, y: Images, *, by_tap: bool = False
) -> IgemmConvolution:
    """Return the gradient of the input ``x`` from that of the output ``y``.

    For each phase of the strides, the pixels of the input are a convolution of the gradients of the
    outputs, by the taps that reach these pixels; where none does they are zeros.
    """
    phases, columns, (down, right, deep) = [], _columns_at_once(schedule, x, y), schedule.step
    n, c, *size = x.shape
    strides = x.row_stride, x.column_stride, x.plane_stride
    for first in product(range(down), range(0, right, columns), range(deep)):
        h, w, d = (
            -(-(end - at) // step)
            for end, at, step in zip((*size, x.planes), first, schedule.step, strict=True)
        )
        if min(h, w, d) < 1:
            continue
        away = [[at - one for at, one in zip(first, tap, strict=True)] for tap in schedule.taps]
        apart = down, right // columns, deep  # of the taps that reach a pixel
        reached = {
            number: (-(-one[0] // down), -(-one[1] // right), -(-one[2] // deep))
            for number, one in enumerate(away)
            if not any(at % step for at, step in zip(one, apart, strict=True))
        }
        turned = replace(
            schedule, taps=tuple(dict.fromkeys(reached.values())), step=(1, 1, 1),
            channels=schedule.filters, filters=schedule.channels * columns, pixels=n * d * h * w,
        )  # fmt: skip
        target = replace(x.every(schedule.step, (h, w, d)), shape=(n, c * columns, h, w))
        gemm = ImplicitGemm(turned, y, target)
        phases.append(_Phase(gemm, [*reached], sum(map(mul, strides, first))))
    return IgemmConvolution(schedule, phases, back=True, by_tap=by_tap, columns=columns)


def _columns_at_once(schedule: IgemmSchedule, x: Images, y: Images) -> int:
    """Return how many columns of ``x`` a product writes: a stride, if windows do not overlap."""
    columns = schedule.step[1]
    alone = schedule.groups == 1 and x.shape[3] == columns * y.shape[3]
    follow = x.channel_stride == 1 and x.column_stride == x.shape[1]
    rows = len(schedule.taps) // columns
    fit = [tap[1] for tap in schedule.taps] == [*range(columns)] * rows
    return columns if alone and follow and fit else 1


class GradientFields(ProductFields):
    """The gradient of the filters; ``y`` has the gradients of the outputs."""

    filters: structs.Output
    """Gradient of the filters: term after term, filters side by side."""
    offsets: structs.OptionalAddress
    """Gradient of the offsets."""
    ones: structs.Address
    """1, of which offsets are a multiple."""


@GradientFields.kernel("igemm_gradient")
def _kernel(k: Kernel, f: GradientFields, rows: int, panels: Panels, *, tiled: bool) -> None:
    """Write the kernel of tiles of some terms; windows are copied tile after tile if ``tiled``."""
    panel_bytes = panels.vectors * k.vector_bytes
    with each_part(k, f) as part:
        nowhere = part.columns + f.most_rows * panel_bytes
        times = (f.pixels + (f.most_rows - 1)) // f.most_rows
        first, last = chunk(f.block_count, part.number, f.parts)
        with k.loop(times) as some:
            start, stop = chunk(f.pixels, some.i, times)
            count, again = stop - start, some.i > 0
            list_windows(k, f, start, count, count, part.entries)

            def multiply(left: Word, step: int, targets: Sequence[Word], masks: Masks) -> None:
                """Sum numbers that are ``step`` bytes apart, times the panel of gradients."""
                numbers = [FLOAT * i for i in range(len(targets))]
                sums, _ = product_sums(
                    k, count, left, numbers, step, part.columns, panel_bytes, len(masks), UNROLLED
                )
                write_sums(k, sums, targets, masks, again)

            with k.loop(last, first) as block:
                *copied, term = k.load_words(f.blocks + block.i * BLOCK_BYTES, 5)
                tile_bytes, step = k.word(rows * FLOAT), ROW_BYTES
                if tiled:
                    tile_bytes, step = (count * rows + -rows % k.width) * FLOAT, rows * FLOAT
                    copy_tiles(k, f, part, copied, count, rows, tile_bytes)
                else:
                    copy_windows(k, f, part, copied, count)
                length = copied[1] * copied[3]

                def write_panel(panel: Word, columns: int) -> None:
                    masks = column_masks(k, columns)
                    place = part.group * f.filter_count * FLOAT + panel * panel_bytes
                    _copy_panel(k, part, place, count, panel_bytes, masks, prefetches=tiled)
                    with k.when((f.offsets > 0) & (block.i < 1)):
                        multiply(f.ones, 0, [f.offsets + place], masks)
                    with k.loop((length + (rows - 1)) // rows) as tile:
                        row = tile.i * rows
                        target = part.filters + (term + row) * f.filter_bytes
                        target = target + panel * panel_bytes
                        own = [
                            choose(row + i < length, target + f.filter_bytes * i, nowhere)
                            for i in range(rows)
                        ]
                        multiply(part.buffer + tile.i * tile_bytes, step, own, masks)

                for_each_panel(k, part.panels, f.whole, panels.counts, write_panel)


def _copy_panel(
    k: Kernel, part: Part, place: Word, count: Word, panel_bytes: int, masks: Masks, *,
    prefetches: bool,
) -> None:  # fmt: skip
    """Copy a panel of the gradients of ``count`` outputs, at some bytes of a pixel.

    With ``prefetches``, the next panel is prefetched: its lines are far from each other.
    """
    with k.loop(count, words=[part.entries + 4 * INT, part.columns]) as one:
        entry, target = one.words
        source = k.load_word(entry) + place
        for j, some in enumerate(masks):
            at = k.vector_bytes * j
            k.store(k.load(source + at, some), target + at)
        if prefetches:
            k.prefetch(source + panel_bytes, cache=2)
        one.words = [entry + ENTRY_BYTES, target + panel_bytes]


class FilterGradient:
    """The gradients of filters and offsets.

    Args:
        kernel: Taps of the filters along each axis.

    Attributes:
        scratch_size: Elements of scratch memory for a call.
        strides: Elements from one group, filter, channel and, for each axis, tap to the next, as
            the gradient of the filters is written.
    """

    def __init__(
        self, schedule: IgemmSchedule, x: Images, y: Images, kernel: Sequence[int] = ()
    ) -> None:
        self.schedule, self._merged, n = schedule, None, schedule.merged
        each, area = schedule.channels * schedule.filters, len(schedule.taps)
        taps = [math.prod(kernel[axis + 1 :]) for axis in range(len(kernel))]
        self.strides = each * area, 1, schedule.filters, *(each * tap for tap in taps)
        if n > 1:
            c, m = schedule.channels // n, schedule.filters // n
            self.strides = m * c * area, c * area, area, *taps
            self._merged = aligned(schedule.groups * each * area)
            places = np.arange(self._merged.size).reshape(schedule.groups, area, n, c, n, m)
            own = places.diagonal(axis1=2, axis2=4).transpose(0, 4, 3, 2, 1)
            self._take_own = Gather(own, schedule.tuning)
        blocks = schedule.blocks(in_place=False)
        parts, filter_parts = schedule.divide(len(blocks))
        longest = max(taps * channels for _, taps, _, channels, _ in blocks)
        rows, pixels = schedule.rows_of(longest), min(MOST_PIXELS, schedule.pixels)
        tile = pixels * rows + -rows % schedule.width  # elements, with those written over
        fits = math.ceil(longest / rows) * tile * FLOAT <= pixels * ROW_BYTES
        one_tap = all(taps == 1 for _, taps, *_ in blocks)
        tiled = fits and one_tap and schedule.panels >= TILED_PANELS
        gradient = _kernel(schedule.width, rows, schedule.panel_kinds, tiled=tiled)
        values, self.scratch_size = product_values(
            schedule, blocks, x, y, pixels, pixels + 1, each * area
        )
        fields = GradientFields.values(
            **values,
            x=ImageFields.of(x),
            y=ImageFields.of(y),
            filter_bytes=schedule.filters * FLOAT,
            ones=np.ones(1, np.float32),
            parts=parts,
            filter_parts=filter_parts,
        )
        self._sum = BoundKernel(schedule.kernel, gradient, fields, schedule.tuning)

    def __call__(
        self, source: np.ndarray, dy: np.ndarray, filters: np.ndarray, offsets: np.ndarray | None,
        scratch: np.ndarray,
    ) -> None:  # fmt: skip
        """Write the gradients of the filters and, unless None, of the offsets."""
        written = filters if self._merged is None else self._merged
        self._sum(written, source, dy, scratch, offsets)
        if self._merged is not None:
            self._take_own(self._merged, filters)


class TurnedGradient(FilterGradient):
    """The gradient of filters of one tap, in C order: gradients of outputs are the left matrix."""

    def __init__(
        self, schedule: IgemmSchedule, x: Images, y: Images, kernel: Sequence[int]
    ) -> None:
        turned = replace(
            schedule, channels=schedule.filters, filters=schedule.channels, step=(1, 1, 1)
        )
        super().__init__(turned, y, x.every(schedule.step, (*y.shape[2:], y.planes)), kernel)
        group, by_channel, by_filter, *taps = self.strides
        self.strides = group, by_filter, by_channel, *taps

    def __call__(
        self, source: np.ndarray, dy: np.ndarray, filters: np.ndarray, offsets: np.ndarray | None,
        scratch: np.ndarray,
    ) -> None:  # fmt: skip
        """Write the gradient of the filters; ``offsets`` are None."""
        super().__call__(dy, source, filters, offsets, scratch)


def filter_gradient(
    schedule: IgemmSchedule, x: Images, y: Images, kernel: Sequence[int], *, bias: bool
) -> FilterGradient:
    """Return the gradients of filters and, with a ``bias``, of offsets."""
    pixels = schedule.taps == ((0, 0, 0),) and schedule.merged == 1 and not bias
    sizes = zip((*x.shape[2:], x.planes), (*y.shape[2:], y.planes), schedule.step, strict=True)
    inside = all((places - 1) * step < size for size, places, step in sizes)  # no pads after x
    many = schedule.channels >= min(schedule.filters, TILED_PANELS * schedule.panel)
    turned = pixels and inside and many
    return (TurnedGradient if turned else FilterGradient)(schedule, x, y, kernel)
