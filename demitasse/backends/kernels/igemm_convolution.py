"""Convolutions and their gradients by implicit GEMM: group by group, phase by phase."""

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
from demitasse.backends.kernels.igemm import IgemmSchedule, ImplicitGemm
from demitasse.backends.kernels.igemm_gradient import FilterGradient
from demitasse.backends.kernels.images import Images


class _Part(NamedTuple):
    """A product of one group, and where its source and target begin, in elements."""

    gemm: ImplicitGemm
    group: int
    taps: Sequence[int]  # numbers of the convolution's taps
    source: int
    target: int


class IgemmConvolution:
    """A convolution, or the gradient of its input, by products.

    Attributes:
        filters: The filters of all products.
        scratch_size: Elements of scratch memory for a call.
    """

    def __init__(self, schedule: IgemmSchedule, parts: Sequence[_Part], *, back: bool) -> None:
        self.schedule, self._parts, self._back = schedule, parts, back
        self.scratch_size = max(part.gemm.scratch_size for part in parts)
        ends = [*accumulate(part.gemm.size for part in parts)]
        self.filters = aligned(ends[-1])
        self._filters = [self.filters[a:b] for a, b in pairwise([0, *ends])]

    def update(self, weights: np.ndarray) -> None:
        """Copy new weights, in C order. Shape: (G, M / G, C / G, taps)."""
        one = self.schedule
        shape = -1, one.filters, one.channels, len(one.taps)
        size = math.prod(shape[1:]) * (1 + max(part.group for part in self._parts))
        by_group = weights[:size].reshape(shape)
        for part, filters in zip(self._parts, self._filters, strict=True):
            own = by_group[part.group][:, :, part.taps]
            part.gemm.pack(own.swapaxes(0, 1) if self._back else own, filters)

    def __call__(
        self,
        source: np.ndarray,
        target: np.ndarray,
        offsets: np.ndarray | None,
        scratch: np.ndarray,
    ) -> None:
        """Convolve, with one offset for each channel of the target; None for zeros."""
        each = self.schedule.filters
        for part, filters in zip(self._parts, self._filters, strict=True):
            own = None if offsets is None else offsets[part.group * each :]
            part.gemm(source[part.source :], target[part.target :], filters, own, scratch)


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
    normed: tuple[np.ndarray, np.ndarray] | None = None,
    then: Rectifier = NOTHING,
) -> IgemmConvolution:
    """Return the convolution of ``x``, with its rectifier; see :class:`ImplicitGemm`."""
    taps = range(len(schedule.taps))
    parts = [
        _Part(
            ImplicitGemm(schedule, *images, normed, then),
            group, taps, group * schedule.channels, group * schedule.filters,
        )
        for group, images in enumerate(_groups(schedule, x, y))
    ]  # fmt: skip
    return IgemmConvolution(schedule, parts, back=False)


def igemm_input_gradient(schedule: IgemmSchedule, x: Images, y: Images) -> IgemmConvolution:
    """Return the gradient of the input ``x`` from that of the output ``y``.

    For each phase of the strides, the pixels of the input are a convolution of the gradients of the
    outputs, by the taps that reach these pixels; where none does they are zeros.
    """
    parts = []
    for group, (one_x, one_y) in enumerate(_groups(schedule, x, y)):
        n, channels, *ends = one_x.shape
        for first in product(*map(range, schedule.step)):
            h, w = (
                -(-(end - at) // step)
                for end, at, step in zip(ends, first, schedule.step, strict=True)
            )
            if min(h, w) < 1:
                continue
            away = [[at - one for at, one in zip(first, tap, strict=True)] for tap in schedule.taps]
            reached = {
                number: (row // schedule.step[0], column // schedule.step[1])
                for number, (row, column) in enumerate(away)
                if row % schedule.step[0] == column % schedule.step[1] == 0
            }
            images = replace(
                one_x,
                shape=(n, channels, h, w),
                row_stride=one_x.row_stride * schedule.step[0],
                column_stride=one_x.column_stride * schedule.step[1],
            )
            turned = replace(
                schedule, taps=(*reached.values(),), step=(1, 1), channels=schedule.filters,
                filters=channels, pixels=n * h * w,
            )  # fmt: skip
            begin = first[0] * x.row_stride + first[1] * x.column_stride
            parts.append(
                _Part(
                    ImplicitGemm(turned, one_y, images), group, [*reached],
                    group * schedule.filters, group * channels + begin,
                )
            )  # fmt: skip
    return IgemmConvolution(schedule, parts, back=True)


class IgemmFilterGradient:
    """The gradients of the filters and offsets of a convolution.

    Attributes:
        strides: Elements from one group, filter, channel, row and column of taps to the next, as
            the gradient of the filters is written.
        scratch_size: Elements of scratch memory for a call.
    """

    def __init__(self, schedule: IgemmSchedule, op: ops.Conv, x: Images, y: Images) -> None:
        self.schedule = schedule
        self._groups = [FilterGradient(schedule, *images) for images in _groups(schedule, x, y)]
        m, by_column = schedule.filters, schedule.filters * schedule.channels
        self.strides = self._groups[0].size, 1, m, op.kernel[1] * by_column, by_column
        self.scratch_size = self._groups[0].scratch_size

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
            into = filters[group * gradient.size :]
            x, y = source[group * one.channels :], dy[group * one.filters :]
            gradient(x, y, into, own, scratch)
