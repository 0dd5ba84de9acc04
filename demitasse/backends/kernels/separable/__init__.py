"""Separable convolution: which ones have a kernel, and their schedule."""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from demitasse.backends import ops
from demitasse.backends.kernels.depthwise import PIXELS, DepthwiseSchedule, plan_depthwise
from demitasse.backends.kernels.images import Images, first_channels
from demitasse.backends.kernels.products import ROWS
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.step import decline_if

__all__ = ["LINE", "LINES", "PANEL", "UNROLLED", "WIDTHS", "SeparableSchedule", "plan_separable"]


PANEL = 2
"""Vectors of filters whose sums are in registers at a time."""

WIDER = {4: 2, 8: 3, 16: 2}
"""Floats of a vector -> the same for numbers of filters that divide better so."""

WIDTHS = 256, 1024
"""For how many channels pixels are noted at a distance."""

LINE = 16
"""Floats of a cache line. Stored pixels are a power of two plus one line apart, so that equal
channels of all pixels do not compete for the same cache lines."""

UNROLLED = 2
"""Channels of a step of the products' innermost loop."""

LINES = 2
"""Cache lines that a step prefetches for the next block."""

LAST = 4
"""With one part in so many of the panels, the last, the next block is fetched."""

PAIRS = 16
"""Floats of a vector of whose registers there are enough for two rows of outputs."""

SUMS = 8
"""Sums of some pixels and a panel that take no longer because they wait for each other."""

PASS = 2
"""Cost of one more pass over all filters, in pixels."""

LARGER = 2
"""Greatest growth of blocks beyond their best size, where filters that exceed the second cache
holds are read again for each."""

FLOAT_BYTES = 4


@dataclass(frozen=True)
class SeparableSchedule:
    """A depthwise and the following pointwise convolution. A block is some rows of outputs.

    Attributes:
        strips: The depthwise convolution.
        y: The outputs' shape, (N, M, OH, OW).
    """

    strips: DepthwiseSchedule
    y: tuple[int, ...]

    @property
    def channels(self) -> int:
        """Channels between the two."""
        return self.strips.x[1]

    @property
    def bf16(self) -> bool:
        """True if pairs of channels are multiplied in bfloat16."""
        return self.strips.tuning.bf16

    @property
    def terms(self) -> int:
        """Terms of a pixel's sum: channels, or pairs of channels."""
        return self.channels // 2 if self.bf16 else self.channels

    @property
    def vectors(self) -> int:
        """Vectors of a panel of filters."""
        filters, width = self.y[1], self.strips.width
        if filters % (WIDER[width] * width) == 0 < filters % (PANEL * width):
            return WIDER[width]
        return min(PANEL, math.ceil(filters / width))

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
    def quiet(self) -> int:
        """With how many panels, the first, nothing is fetched for the next block.

        What is fetched early is driven out of the cache by filters before it is read.
        """
        fetched = LINES * LINE // UNROLLED  # of each channel, with each few pixels
        least = math.ceil(self.pixels * math.prod(self.strips.op.stride) / fetched)
        return max(0, len(self.panels) - max(least, math.ceil(len(self.panels) / LAST)))

    @property
    def pairs(self) -> bool:
        """True if two rows of depthwise outputs are computed at a time.

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
        """Layout of one row of intermediate pixels, channels last."""
        n, channels, height, width = self.strips.y
        column = self.wide + LINE
        return Images((n, channels, height, width), 0, width * column, column)

    @property
    def remainders(self) -> set[int]:
        """Numbers of pixels that blocks leave, less than are computed at a time."""
        rows, columns = self.strips.y[0] * self.strips.y[2], self.y[3]
        parts = self.strips.tuning.threads
        cuts = [rows * part // parts for part in range(parts + 1)]
        each = {end - begin for begin, end in pairwise(cuts)}
        counts = {n for of in each for n in (of // self.count, -(-of // self.count))}
        return {rows * columns % self.pixels for rows in counts} - {0}

    @cached_property
    def count(self) -> int:
        """Blocks of each thread, such that few sums wait for each other, and a cache holds one."""
        row_bytes, (rows, least) = self.y[3] * self.channels * FLOAT_BYTES, self._rows
        noted_bytes = self.strips.tuning.noted_bytes
        again = self.channels * self.y[1] * FLOAT_BYTES > noted_bytes  # filters come from afar
        good = math.ceil(rows * row_bytes / noted_bytes)
        fewest = math.ceil(good / LARGER) if again else good
        fitting = [count for count in range(1, min(2 * good, least) + 1) if self._fits(count)]
        likely = [count for count in fitting if count >= fewest] or fitting[-1:] or [1]
        return min(likely, key=lambda count: (self._computed(count) + PASS * count, -count))

    @property
    def fits(self) -> bool:
        """True if each row and each block have as many pixels as are computed at a time."""
        return self._fits(self.count) and self.y[3] >= PIXELS[self.strips.width]

    def _fits(self, count: int) -> bool:
        return self._rows[1] // count * self.y[3] >= self.pixels

    @property
    def scratch(self) -> int:
        """Floats that each thread notes."""
        return math.ceil(self._rows[0] / self.count) * self.between.row_stride

    @property
    def waste(self) -> float:
        """Load imbalance: the maximum over the mean of the threads' work."""
        wide, (images, maps, height, columns) = self.vectors * self.strips.width, self.y
        computed = self._computed(self.count) * len(self.panels) * wide
        return computed * self.strips.tuning.threads / (images * height * columns * maps)

    @property
    def _rows(self) -> tuple[int, int]:
        """Rows of the thread with most of them, and of that with least."""
        rows, threads = self.y[0] * self.y[2], self.strips.tuning.threads
        return math.ceil(rows / threads), rows // threads

    def _computed(self, count: int) -> int:
        """Return as how many pixels count those that a thread computes in so many blocks."""
        rows, columns = self._rows[0], self.y[3]
        less, more = count - rows % count, rows % count
        small, large = (self._as_many(n * columns) for n in (rows // count, rows // count + 1))
        return less * small + more * large

    def _as_many(self, pixels: int) -> int:
        """Return as how many pixels those of a block count; sums of the last few may wait."""
        rest = pixels % self.pixels
        return pixels - rest + (max(rest, SUMS // self.vectors) if rest else 0)

    @property
    def code(self) -> str:
        """Name of the code, with the processor's instructions."""
        return f"separable llvm:{self.strips.tuning.instructions}" + "_bf16" * self.bf16


MOST_WASTE = 1.06
"""Greatest load imbalance (maximum over mean) up to which the kernel pays."""

MOST_SPARE = 0.6
"""Vectors of filters for each pixel, computed beyond its share, up to which it pays: what lies
between, which is not written to memory, takes as long."""


def plan_separable(depthwise: ops.Conv, pointwise: ops.Conv, tuning: Tuning) -> SeparableSchedule:
    """Return the schedule of a depthwise convolution and the following pointwise convolution.

    Raises:
        Declined: They are others, or it would not be faster.
    """
    tuning.require("separable")
    decline_if(
        depthwise.after or not pointwise.is_pointwise or len(pointwise.kernel) != 2,
        "a depthwise convolution runs as one with windows of one pixel in one group",
    )
    strips = plan_depthwise(depthwise, depthwise.bottom, depthwise.top, tuning)
    blocks = SeparableSchedule(strips, pointwise.top)
    channels, fewest = blocks.channels, tuning.width
    decline_if(tuning.bf16 and channels % 2 > 0, "an odd number of channels; bfloat16 has pairs")
    decline_if(
        channels > WIDTHS[-1] or pointwise.top[1] < fewest or not blocks.fits,
        f"images of {strips.y[2:]}, {channels} channels to {pointwise.top[1]}; separable "
        f"convolution takes {blocks.pixels} pixels or more for each thread, up to "
        f"{WIDTHS[-1]} channels to {fewest} or more",
    )
    spare = (blocks.waste - 1) * pointwise.top[1]
    wastes = blocks.waste > MOST_WASTE and spare > MOST_SPARE * tuning.width
    decline_if(
        "separable" not in tuning.always and wastes,
        f"images of {strips.y[2:]}, {blocks.pixels} pixels at a time, for {tuning.threads} "
        "threads; separable convolution pays where these divide well",
    )
    return blocks
