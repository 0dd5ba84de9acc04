"""Convolution of small groups: which ones have a kernel, and their schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from demitasse.backends import ops
from demitasse.backends.kernels.images import Images, first_channels
from demitasse.backends.kernels.tuning import ConvSchedule, Tuning
from demitasse.backends.kernels.windows import RegisterTile, decline_many, plan_tile
from demitasse.backends.step import Declined

FLOAT_BYTES = 4

PIXELS = {4: 14, 8: 8, 16: 14}
"""Floats of a vector -> windows whose sums fit into registers, with a row of taps."""

SHARED = 8
"""The same where several groups have a vector, for each width: of those a pixel has few channels
that are read again, and all of a tile's pixels do better to stay in a core's first cache."""

SMALL = 9
"""Taps of a window up to which groups of whole vectors do not go over tiles."""

ROWS_EACH = 8
"""Rows of outputs that each thread has at least; with fewer, threads divide the filters too."""


@dataclass(frozen=True)
class GroupedSchedule(ConvSchedule):
    """A convolution of groups. A part is some of its filters; threads divide its rows, too."""

    kernel: ClassVar[str] = "grouped"

    @property
    def channels(self) -> int:
        """Channels that a group reads."""
        return self.x[1] // self.op.group

    @property
    def shared(self) -> bool:
        """True if several groups have a vector."""
        return self.channels < self.width and self.x[1] == self.y[1]

    def fits(self, images: Images) -> bool:
        """Return whether what a vector reads or writes lies side by side in images."""
        return images.fits(self.width) if self.shared else images.block == images.shape[1]

    @property
    def input_gradient(self) -> GroupedSchedule | None:
        """Schedule of the input's gradient as a grouped convolution; None if unsupported."""
        op, (high, wide) = self.op, self.op.kernel
        (down, right), (top, left) = op.dilation, op.pad
        pad = (high - 1) * down - top, (wide - 1) * right - left
        if not self.shared or op.stride != (1, 1) or min(pad) < 0:
            return None
        transposed = ops.Conv(**{**vars(op), "bottom": op.top, "top": op.bottom, "pad": pad})
        return replace(self, op=transposed, x=self.y, y=self.x)

    @property
    def beats_tiles(self) -> bool:
        """True if this kernel is preferred to Winograd's, whose filters are four times as large.

        Few products are made of each, so that reading them takes as long as those save; not so in
        windows of 5x5, of which a tile saves more.
        """
        if self.tuning.winograd == "always":
            return False
        return self.shared or math.prod(self.op.kernel) <= SMALL

    @cached_property
    def vectors(self) -> list[int]:
        """First filter of each vector; the last begins early where they do not divide."""
        return first_channels(self.y[1], self.width)

    @cached_property
    def tile(self) -> RegisterTile:
        """Register tiles of a row of windows."""
        return plan_tile(self.y[3], SHARED if self.shared else PIXELS[self.width], self.op)

    @property
    def fetches(self) -> bool:
        """True if pixels are prefetched, because no cache has room for all images."""
        floats = math.prod(self.x) + math.prod(self.y)
        return floats * FLOAT_BYTES > self.tuning.cached_bytes

    @cached_property
    def parts(self) -> int:
        """Into how many parts the vectors are divided, so that a part's filters stay in a cache."""
        size = self.y[1] * self.channels * math.prod(self.op.kernel) * FLOAT_BYTES
        parts = math.ceil(size / self.tuning.group_filter_bytes)
        if self.y[0] * self.y[2] * parts < ROWS_EACH * self.tuning.threads:
            parts = max(parts, self.tuning.threads)
        return min(parts, len(self.vectors))


WIDEST = 11
"""Greatest number of taps of a window's row; kernels are unrolled over taps."""


def plan_grouped(op: ops.Conv, x: ops.Shape, y: ops.Shape, tuning: Tuning) -> GroupedSchedule:
    """Return the schedule of a convolution with small groups; shapes are (N, C, H, W).

    Raises:
        Declined: Groups or windows are unsupported.
    """
    width = tuning.width
    if not width or tuning.grouped == "never":
        message = "our own convolution of groups is off"
        raise Declined(message)
    reads, writes = x[1] // op.group, y[1] // op.group
    shared = reads == writes and width % reads == 0
    fits = 1 < reads <= width <= y[1] and (shared or writes % width == 0)
    if len(op.kernel) != 2 or op.group == 1 or not fits or op.kernel[1] > WIDEST:
        message = (
            f"convolution of groups takes two axes, groups of 2 to {width} channels that divide a "
            f"vector, or are written as whole ones, and windows up to {WIDEST} wide"
        )
        raise Declined(message)
    parts = GroupedSchedule(op, x, y, tuning)
    decline_many(parts.tile, op)
    return parts
