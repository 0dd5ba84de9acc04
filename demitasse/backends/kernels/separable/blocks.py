"""How a separable convolution is divided among threads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from demitasse.backends.kernels.depthwise.strips import Strips
from demitasse.backends.kernels.depthwise.windows import PIXELS
from demitasse.backends.kernels.images import Images, first_channels
from demitasse.backends.kernels.products.registers import ROWS

__all__ = ["LINE", "PANEL", "WIDTHS", "Blocks"]

PANEL = 2
"""Vectors of filters at most whose sums are in registers at a time."""

WIDTHS = 256, 1024
"""For how many channels pixels are noted at a distance."""

LINE = 16
"""Floats of a line of the cache. By one more than a power of two lie pixels apart that are noted,
so that the same channels of all do not compete for the same lines of the cache."""

PAIRS = 16
"""Floats of a vector of whose registers there are enough for two rows of outputs."""

LARGER = 4
"""How many times larger than they should be blocks are at most, where pixels divide better then."""

FLOAT_BYTES = 4


@dataclass(frozen=True)
class Blocks:
    """A depthwise convolution and a pointwise one behind it. A block is some rows of outputs.

    Attributes:
        strips: The depthwise one.
        y: The outputs' shape, (N, M, OH, OW).
    """

    strips: Strips
    y: tuple[int, ...]

    @property
    def channels(self) -> int:
        """Channels between the two."""
        return self.strips.x[1]

    @property
    def vectors(self) -> int:
        """Vectors of a panel of filters."""
        return min(PANEL, math.ceil(self.y[1] / self.strips.width))

    @property
    def next_vector(self) -> int:
        """Filters from one of them to the next; fewer than fill one where there are few filters."""
        return min(self.strips.width, self.y[1] - self.strips.width)

    @property
    def pixels(self) -> int:
        """Pixels whose sums are computed at a time."""
        return ROWS[self.strips.width][self.vectors]

    @cached_property
    def panels(self) -> list[int]:
        """First filter of each panel; the last begins early where they do not divide."""
        wide = self.vectors * self.strips.width
        return first_channels(max(self.y[1], wide), wide)

    @property
    def pairs(self) -> bool:
        """Whether two rows of depthwise outputs are computed at a time.

        Their sums fit into the registers, and they see rows side by side.
        """
        op = self.strips.op
        return self.strips.width == PAIRS and {*op.stride, *op.dilation} == {1}

    @property
    def wide(self) -> int:
        """For how many channels pixels are noted at a distance."""
        return next(count for count in WIDTHS if count >= self.channels)

    @property
    def between(self) -> Images:
        """Where the pixels of one row lie that are noted, each with all its channels."""
        n, channels, height, width = self.strips.y
        column = self.wide + LINE
        return Images((n, channels, height, width), 0, width * column, column, channels)

    @cached_property
    def count(self) -> int:
        """Blocks of each thread, such that few pixels are computed twice, and a cache holds one."""
        row_bytes, (rows, least) = self.y[3] * self.channels * FLOAT_BYTES, self._rows
        good = math.ceil(rows * row_bytes / self.strips.tuning.noted_bytes)
        counts = range(math.ceil(good / LARGER), min(2 * good, least) + 1)
        fitting = [count for count in counts if self._fits(count)]
        return min(fitting or [1], key=lambda count: (self._times(count), -count))

    @property
    def fits(self) -> bool:
        """Whether each row and each block have as many pixels as are computed at a time."""
        return self._fits(self.count) and self.y[3] >= PIXELS[self.strips.width]

    def _fits(self, count: int) -> bool:
        return self._rows[1] // count * self.y[3] >= self.pixels

    @property
    def scratch(self) -> int:
        """Floats that each thread notes."""
        return math.ceil(self._rows[0] / self.count) * self.between.row_stride

    @property
    def waste(self) -> float:
        """What the thread with most work computes, as a multiple of its share."""
        wide, (images, maps, height, columns) = self.vectors * self.strips.width, self.y
        computed = self._times(self.count) * self.pixels * len(self.panels) * wide
        return computed * self.strips.tuning.threads / (images * height * columns * maps)

    @property
    def _rows(self) -> tuple[int, int]:
        """Rows of the thread with most of them, and of that with least."""
        rows, threads = self.y[0] * self.y[2], self.strips.tuning.threads
        return math.ceil(rows / threads), rows // threads

    def _times(self, count: int) -> int:
        """Return how often a thread computes some pixels for each panel, in so many blocks."""
        rows, columns = self._rows[0], self.y[3]
        less, more = count - rows % count, rows % count
        small, large = (
            math.ceil(n * columns / self.pixels) for n in (rows // count, rows // count + 1)
        )
        return less * small + more * large

    @property
    def code(self) -> str:
        """Name of the code, with the processor's instructions."""
        return f"separable llvm:{self.strips.tuning.instructions}"
