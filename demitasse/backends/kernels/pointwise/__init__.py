"""1x1 convolution: which ones have a kernel, and their schedule."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from demitasse.backends import ops
from demitasse.backends.kernels.images import first_channels
from demitasse.backends.kernels.products import ROWS
from demitasse.backends.kernels.tuning import TunedKernel, Tuning
from demitasse.backends.step import Declined

__all__ = [
    "PANEL",
    "WIDEST",
    "PointwiseSchedule",
    "check_norm_gain",
    "limits_pay",
    "plan_pointwise",
]


PANEL = 2
"""Vectors of filters whose sums are in registers at a time."""

WIDEST = 2048
"""Channels of an input at most. The rows that are noted lie at a distance for so many."""


@dataclass(frozen=True)
class PointwiseSchedule(TunedKernel):
    """A pointwise convolution. Threads divide the pixels, and where these are few the filters too.

    Attributes:
        x: The input's shape, (N, C, H, W).
        y: The output's shape, (N, M, H, W).
        tuning: The kernel's vectors and threads.
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


FLOAT_BYTES = 4

MOST_WASTE = 1.1
"""Pixels that are computed, as a multiple of those there are, up to which it pays."""

MOST_SPARE = 5
"""Products for each number beyond those that it needs, up to which it pays to have limits: the
library computes fewer, but has a pass over memory after them."""


def plan_pointwise(op: ops.Conv, x: ops.Shape, y: ops.Shape, tuning: Tuning) -> PointwiseSchedule:
    """Return the schedule of a pointwise convolution.

    Args:
        op: The convolution.
        x: Its input's shape, (N, C, H, W).
        y: Its output's shape.
        tuning: Target of the kernels, and the choice of kernels.

    Raises:
        Declined: The windows are unsupported, or the convolution is too small.
    """
    if not tuning.width or tuning.pointwise == "never":
        message = "our own pointwise convolution is off"
        raise Declined(message)
    if not op.is_pointwise or len(op.kernel) != 2:
        message = "pointwise convolution takes windows of one pixel, without strides, in one group"
        raise Declined(message)
    parts = PointwiseSchedule(x, y, tuning)
    fewest = PANEL * tuning.width
    if parts.pixels < parts.rows or not tuning.width <= x[1] <= WIDEST or y[1] < fewest:
        message = (
            f"{parts.pixels} pixels, {x[1]} channels to {y[1]}; pointwise convolution takes "
            f"{parts.rows} pixels or more, {tuning.width} to {WIDEST} channels to {fewest} or more"
        )
        raise Declined(message)
    if tuning.pointwise == "auto":
        _check_gain(parts)
    return parts


def check_norm_gain(parts: PointwiseSchedule) -> None:
    """Decline the normalisation of pixels that a pass of its own does faster.

    Few rows are computed at a time on AVX2, so that filters are read more often; that costs more
    than a pass over pixels in a cache.

    Raises:
        Declined: The pixels fit into a cache.
    """
    pixel_bytes = math.prod(parts.x) * FLOAT_BYTES
    few = parts.tuning.pointwise == "auto" and parts.tuning.instructions == "avx2"
    if few and pixel_bytes <= parts.tuning.cached_bytes:
        message = (
            f"pixels of {pixel_bytes >> 10} KiB; on AVX2 their normalisation on the way pays "
            f"beyond {parts.tuning.cached_bytes >> 10} KiB"
        )
        raise Declined(message)


def limits_pay(parts: PointwiseSchedule) -> bool:
    """Return whether results within limits are computed faster than by the library and a pass."""
    return parts.tuning.pointwise == "always" or parts.spare <= MOST_SPARE


def _check_gain(parts: PointwiseSchedule) -> None:
    """Decline what the library does faster, though what it reads must be written before.

    Raises:
        Declined: The filters are too large, or the last pixels waste too much time.
    """
    filter_bytes = parts.x[1] * parts.y[1] * FLOAT_BYTES
    if filter_bytes > parts.tuning.pixel_filter_bytes:
        message = (
            f"filters of {filter_bytes >> 10} KiB, which are read for each few pixels; pointwise "
            f"convolution pays up to {parts.tuning.pixel_filter_bytes >> 10} KiB"
        )
        raise Declined(message)
    if parts.waste > MOST_WASTE:
        message = (
            f"{parts.pixels} pixels, {parts.rows} at a time; pointwise convolution pays where "
            "these divide well"
        )
        raise Declined(message)
