"""Depthwise convolution: which ones have a kernel, and their schedule."""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

from demitasse.backends import ops
from demitasse.backends.kernels.images import Images, first_channels
from demitasse.backends.kernels.tuning import ConvSchedule, Tuning
from demitasse.backends.step import decline_if

FLOAT_BYTES = 4

ROWS_EACH = 8
"""Rows of outputs that each thread has at least; with fewer, threads divide the channels too."""


@dataclass(frozen=True)
class Group:
    """Contiguous channels that a thread convolves at a time, in whole vectors from ``vector`` on.

    Attributes:
        x, y: Elements from the beginning of an input and of an output pixel to the channels.
    """

    x: int
    y: int
    vector: int
    channels: int


@dataclass(frozen=True)
class DepthwiseSchedule(ConvSchedule):
    """A depthwise convolution. A strip is an output row of one image, of one group of channels."""

    kernel: ClassVar[str] = "depthwise"

    @cached_property
    def vectors(self) -> list[int]:
        return first_channels(self.x[1], self.width)

    def fetches(self, x: Images, y: Images) -> bool:
        """Return whether prefetching pixels pays.

        No cache holds large images any more, or their outputs. Where blocks of channels become
        pixels with all their channels, each block is written to lines that are not neighbours.
        """
        floats = math.prod(self.x) + math.prod(self.y)
        return x.block != y.block or floats * FLOAT_BYTES > self.tuning.cached_bytes

    def reads_blocks(self, x: Images) -> bool:
        """Return whether images are in blocks of a vector, and windows overlap edges by 1."""
        op, (columns, wide) = self.op, (self.y[3], self.x[3])
        right = (columns - 1) * op.stride[1] - op.pad[1] + (op.kernel[1] - 1) * op.dilation[1]
        return x.block == x.column_stride == self.width and op.pad[1] <= 1 and right <= wide

    def groups(self, x: Images, y: Images) -> list[Group]:
        """Return groups of channels that are contiguous in the input and in the output."""
        block = min(x.block, y.block)
        if block == self.x[1] and self.y[0] * self.y[2] < ROWS_EACH * self.tuning.threads:
            parts = min(self.tuning.threads, len(self.vectors))
            cuts = [len(self.vectors) * part // parts for part in range(parts + 1)]
            firsts = [cut * self.width for cut in cuts[:-1]] + [block]
        else:
            firsts = list(range(0, self.x[1] + 1, block))
        return [
            Group(x.place(first), y.place(first), first // self.width, end - first)
            for first, end in pairwise(firsts)
        ]


MOST_TAPS = 25
"""Greatest number of taps of a window; kernels are unrolled over taps."""

WIDEST = 16
"""Greatest number of columns of a window, including dilation."""


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
    reach = (op.kernel[1] - 1) * op.dilation[1] + 1
    decline_if(
        math.prod(op.kernel) > MOST_TAPS or reach > WIDEST,
        f"a window of {op.kernel}; depthwise convolution takes up to {MOST_TAPS} taps, over "
        f"{WIDEST} columns",
    )
    return DepthwiseSchedule(op, x, y, tuning)
