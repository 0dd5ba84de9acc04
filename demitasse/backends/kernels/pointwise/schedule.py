"""Schedules of 1x1 convolutions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from demitasse.backends.kernels.images import first_channels
from demitasse.backends.kernels.products import ROWS
from demitasse.backends.kernels.tuning import Tuning

__all__ = ["PANEL", "WIDEST", "PointwiseSchedule"]


PANEL = 2
"""Vectors of filters whose sums are in registers at a time."""

WIDEST = 2048
"""Channels of an input at most. The rows that are noted lie at a distance for so many."""


@dataclass(frozen=True)
class PointwiseSchedule:
    """A pointwise convolution. Threads divide the pixels, and where these are few the filters too.

    Attributes:
        x: The input's shape, (N, C, H, W).
        y: The output's shape, (N, M, H, W).
        tuning: The kernel's vectors and threads.
    """

    x: tuple[int, ...]
    y: tuple[int, ...]
    tuning: Tuning

    @property
    def width(self) -> int:
        """Channels of a vector."""
        return self.tuning.width

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

    @property
    def code(self) -> str:
        """Name of the code, with the processor's instructions."""
        return f"pointwise llvm:{self.tuning.instructions}"
