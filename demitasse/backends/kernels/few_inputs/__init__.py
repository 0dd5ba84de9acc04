"""Convolution of few input channels: which ones have a kernel, and their schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from demitasse.backends import ops
from demitasse.backends.kernels.images import first_channels
from demitasse.backends.kernels.products import split_columns
from demitasse.backends.kernels.tuning import ConvSchedule, Tuning
from demitasse.backends.step import Declined

FLOAT_BYTES, LINE = 4, 16
"""Bytes of an element, and elements of a cache line."""


@dataclass(frozen=True)
class DirectSchedule(ConvSchedule):
    """A convolution of images with few channels, and perhaps the MAX pooling after it.

    A band is some output rows of one image. Threads divide the bands: each has its chunk of them. A
    thread copies the rows of the image that a band takes, with zeros around them, and reads windows
    from there.

    Attributes:
        pool: Pooling of the outputs.
    """

    kernel: ClassVar[str] = "direct"
    pool: ops.Pool | None = None

    @cached_property
    def chunks(self) -> int:
        """Chunks of bands."""
        return min(self.tuning.threads, self.y[0] * self.rows)

    @cached_property
    def rows(self) -> int:
        """Output rows of an image."""
        return self.pool.top[2] if self.pool else self.y[2]

    @property
    def pads(self) -> bool:
        """True if the filters fill no whole vectors, so that oneDNN pads them."""
        return self.y[1] % self.width != 0

    @cached_property
    def taps(self) -> int:
        """Numbers of a window."""
        return self.x[1] * self.op.kernel[0] * self.op.kernel[1]

    @cached_property
    def _reach(self) -> tuple[int, int]:
        """Rows and columns of a window, with what is between its taps."""
        down, right = (
            (size - 1) * step + 1
            for size, step in zip(self.op.kernel, self.op.dilation, strict=True)
        )
        return down, right

    # -- bands ---------------------------------------------------------------------------------

    @cached_property
    def rows_per_band(self) -> int:
        """Rows that are worked on at a time, the same number in all but an image's last band."""
        if self.pool:
            lines = self.tuning.pooled_bytes // (self.y[3] * self.pixel_stride * FLOAT_BYTES)
            rows = (lines - self.pool.kernel[0]) // self.pool.stride[0] + 1
        else:
            lines = self.tuning.copy_bytes // (self.x[1] * self.copied_columns * FLOAT_BYTES)
            rows = (lines - self._reach[0]) // self.op.stride[0] + 1
        # at least as many bands as chunks
        rows = min(max(1, rows), -(-self.y[0] * self.rows // self.chunks), self.rows)
        return -(-self.rows // -(-self.rows // rows))

    @cached_property
    def bands_per_image(self) -> int:
        """Bands of an image."""
        return -(-self.rows // self.rows_per_band)

    @cached_property
    def output_rows(self) -> int:
        """Rows of the convolution's outputs of a band."""
        if not self.pool:
            return self.rows_per_band
        return (self.rows_per_band - 1) * self.pool.stride[0] + self.pool.kernel[0]

    @cached_property
    def copied_rows(self) -> int:
        """Rows that are copied for a band."""
        return (self.output_rows - 1) * self.op.stride[0] + self._reach[0]

    @cached_property
    def copied_columns(self) -> int:
        """Columns of the copied rows."""
        return (self.y[3] - 1) * self.op.stride[1] + self._reach[1]

    @cached_property
    def copy_size(self) -> int:
        """Elements of what a thread copies, with a plane of ones, and what lies between threads."""
        elements = (self.x[1] + 1) * self.copied_rows * self.copied_columns
        return -(-elements // LINE) * LINE + LINE

    @cached_property
    def chunk_scratch(self) -> int:
        """Elements of a chunk's scratch, with outputs that are pooled."""
        outputs = self.output_rows * self.y[3] * self.pixel_stride + LINE
        return self.copy_size + (outputs if self.pool else 0)

    # -- filters -------------------------------------------------------------------------------

    @cached_property
    def vectors(self) -> list[int]:
        """First filter of each vector."""
        return first_channels(self.y[1], self.width)

    @cached_property
    def pixel_stride(self) -> int:
        """Elements of the outputs at one place, whole vectors."""
        return len(self.vectors) * self.width

    @cached_property
    def panels(self) -> list[tuple[int, int]]:
        """Panels of vectors: number of vectors, and first vector."""
        found = split_columns(self.y[1], self.width)
        return [(vectors, first // self.width) for vectors, first in found]

    @cached_property
    def order(self) -> np.ndarray:
        """The filter of each element of all vectors. Shape: (pixel_stride,)."""
        return np.concatenate([np.arange(at, at + self.width) for at in self.vectors])

    @cached_property
    def tap_table(self) -> np.ndarray:
        """Bytes from a window's first tap to each, and to the plane of ones. Shape: (taps + 1,)."""
        (down, right), (high, wide) = self.op.dilation, self.op.kernel
        c, i, j = np.ogrid[: self.x[1], :high, :wide]
        places = (c * self.copied_rows + i * down) * self.copied_columns + j * right
        ones = self.x[1] * self.copied_rows * self.copied_columns
        return FLOAT_BYTES * np.append(places.reshape(-1), ones).astype(np.int64)

    @cached_property
    def row_table(self) -> np.ndarray:
        """Bytes from a window's first tap to the first of each row. Shape: (channels * rows,)."""
        return self.tap_table[: -1 : self.op.kernel[1]].copy()


FEWEST = 3e6
"""Operations below which starting a kernel takes longer than it saves."""

WIDEST = 16
"""Greatest number of taps of a window's row; kernels are unrolled over taps."""


def plan_direct(op: ops.Conv, x: ops.Shape, y: ops.Shape, tuning: Tuning) -> DirectSchedule:
    """Return the schedule of a convolution with few input channels; shapes are (N, C, H, W).

    Raises:
        Declined: Channels or windows are unsupported, or the convolution is too small to gain.
    """
    if not tuning.width or tuning.direct == "never":
        message = "direct convolution is off"
        raise Declined(message)
    few = len(op.kernel) == 2 and op.group == 1 and x[1] < tuning.width <= y[1]
    if not few or max(op.kernel) == 1 or op.kernel[1] > WIDEST:
        message = (
            f"direct convolution takes images of fewer than {tuning.width} channels to as many "
            f"or more, in one group, windows up to {WIDEST} wide"
        )
        raise Declined(message)
    work = 2 * math.prod(y) * x[1] * math.prod(op.kernel)
    if tuning.direct == "auto" and work < FEWEST:
        message = f"{work:.1e} operations; direct convolution pays from {FEWEST:.0e} on"
        raise Declined(message)
    return DirectSchedule(op, x, y, tuning)
