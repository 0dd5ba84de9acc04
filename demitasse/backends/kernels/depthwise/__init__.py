"""Depthwise convolution: which ones have a kernel, and their schedule."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from demitasse.backends import ops
from demitasse.backends.kernels.images import first_channels
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.kernels.windows import WindowSchedule, decline_many
from demitasse.backends.step import decline_if

PIXELS = {4: 7, 8: 6, 16: 7}
"""Floats of a vector -> pixels whose sums fit into registers, with the columns of a row of taps."""

ROWS_EACH = 8
"""Rows of outputs that each thread has at least; with fewer, threads divide the channels too."""


@dataclass(frozen=True)
class DepthwiseSchedule(WindowSchedule):
    """A depthwise convolution. A strip is an output row of one image, or a part of its channels."""

    kernel: ClassVar[str] = "depthwise"

    @cached_property
    def vectors(self) -> list[int]:
        """First channel of each vector; the last begins early where they do not divide."""
        return first_channels(self.x[1], self.width)

    @property
    def most(self) -> int:
        return PIXELS[self.width]

    @property
    def parts(self) -> int:
        """Into how many parts the channels of a row are divided."""
        few = self.y[0] * self.y[2] < ROWS_EACH * self.tuning.threads
        return min(self.tuning.threads, len(self.vectors)) if few else 1


MOST_TAPS = 121
"""Greatest number of taps of a window; kernels are unrolled over taps."""


def plan_depthwise(op: ops.Conv, x: ops.Shape, y: ops.Shape, tuning: Tuning) -> DepthwiseSchedule:
    """Return the schedule of a depthwise convolution; shapes are (N, C, H, W).

    Raises:
        Declined: The convolution is not depthwise, not 2-D, or has large windows.
    """
    tuning.require("depthwise")
    decline_if(
        len(op.kernel) != 2 or not op.group == x[1] == y[1] or x[1] < tuning.width,
        f"depthwise convolution takes two axes, {tuning.width} channels or more, each in a "
        "group of its own",
    )
    message = f"a window of {op.kernel}; depthwise convolution takes up to {MOST_TAPS} taps"
    decline_if(math.prod(op.kernel) > MOST_TAPS, message)
    strips = DepthwiseSchedule(op, x, y, tuning)
    decline_many(strips.tile, op)
    return strips
