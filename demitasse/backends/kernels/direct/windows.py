"""The windows of a stack of pictures: sizes, and where things lie."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from demitasse.backends import ops
from demitasse.backends.kernels.axes import first_channels
from demitasse.backends.kernels.products.panels import panels

__all__ = ["Windows"]

COPY, SUMS = 32 << 10, 160 << 10
"""Bytes of a picture's rows that a thread copies at a time, and of outputs that are pooled: they
stay in its first cache, and in its second."""


@dataclass(frozen=True)
class Windows:
    """A convolution of pictures with few channels, and perhaps the MAX pooling behind it.

    A band is some rows of what comes out of one picture. Threads divide the bands. A thread copies
    the rows of the picture that a band takes, with zeros around them, and reads windows from there.

    Attributes:
        op: The convolution, over two axes and in one group.
        x: The pictures' shape, (N, C, H, W).
        y: The outputs' shape, (N, M, OH, OW).
        width: Channels of a vector.
        threads: How many there are.
        pool: What is done to the outputs.
    """

    op: ops.Conv
    x: tuple[int, ...]
    y: tuple[int, ...]
    width: int
    threads: int
    pool: ops.Pool | None = None

    @cached_property
    def lanes(self) -> int:
        """Into how many lanes the bands are divided."""
        return min(self.threads, self.y[0] * self.rows)

    @cached_property
    def rows(self) -> int:
        """Rows that come out of a picture."""
        return self.pool.top[2] if self.pool else self.y[2]

    @property
    def pads(self) -> bool:
        """Whether the filters fill no whole vectors, so that the library pads them."""
        return self.y[1] % self.width != 0

    @cached_property
    def taps(self) -> int:
        """Numbers of a window."""
        return self.x[1] * self.op.kernel[0] * self.op.kernel[1]

    @cached_property
    def wide(self) -> int:
        """Columns of the copied rows."""
        return (self.y[3] - 1) * self.op.stride[1] + self._reach[1]

    @cached_property
    def _reach(self) -> tuple[int, int]:
        """Rows and columns of a window, with what is between its taps."""
        down, right = (
            (size - 1) * step + 1
            for size, step in zip(self.op.kernel, self.op.dilation, strict=True)
        )
        return down, right

    @cached_property
    def band(self) -> int:
        """Rows that are worked on at a time, the same number in all but a picture's last band."""
        if self.pool:
            lines = SUMS // (self.y[3] * self.pixel * 4)
            rows = (lines - self.pool.kernel[0]) // self.pool.stride[0] + 1
        else:
            lines = COPY // (self.x[1] * self.wide * 4)
            rows = (lines - self._reach[0]) // self.op.stride[0] + 1
        # at least as many bands as lanes
        rows = min(max(1, rows), -(-self.y[0] * self.rows // self.lanes), self.rows)
        return -(-self.rows // -(-self.rows // rows))

    @cached_property
    def bands(self) -> int:
        """Bands of a picture."""
        return -(-self.rows // self.band)

    @cached_property
    def lines(self) -> int:
        """Rows of outputs of a band."""
        if not self.pool:
            return self.band
        return (self.band - 1) * self.pool.stride[0] + self.pool.kernel[0]

    @cached_property
    def high(self) -> int:
        """Rows that are copied for a band."""
        return (self.lines - 1) * self.op.stride[0] + self._reach[0]

    @cached_property
    def pixel(self) -> int:
        """Elements of the outputs at one place, whole vectors."""
        return len(self.vectors) * self.width

    @cached_property
    def copy(self) -> int:
        """Elements of what a thread copies, with a plane of ones, and what lies between threads."""
        return -(-(self.x[1] + 1) * self.high * self.wide // 16) * 16 + 16

    @cached_property
    def scratch(self) -> int:
        """Elements of a thread's scratch."""
        return self.copy + (self.lines * self.y[3] * self.pixel + 16 if self.pool else 0)

    @cached_property
    def table(self) -> np.ndarray:
        """Bytes from a window's first tap to each, and to the plane of ones. Shape: (taps + 1,)."""
        (down, right), (high, wide) = self.op.dilation, self.op.kernel
        c, i, j = np.ogrid[: self.x[1], :high, :wide]
        places = (c * self.high + i * down) * self.wide + j * right
        ones = self.x[1] * self.high * self.wide
        return 4 * np.append(places.reshape(-1), ones).astype(np.int64)

    @cached_property
    def line_table(self) -> np.ndarray:
        """Bytes from a window's first tap to the first of each row. Shape: (channels * rows,)."""
        return self.table[: -1 : self.op.kernel[1]].copy()

    @cached_property
    def vectors(self) -> list[int]:
        """First filter of each vector."""
        return first_channels(self.y[1], self.width)

    @cached_property
    def panels(self) -> list[tuple[int, int]]:
        """Into what panels the vectors are divided: how many, and the first."""
        found = panels(self.y[1], self.width)
        return [(vectors, at // self.width) for vectors, at in found]

    @cached_property
    def order(self) -> np.ndarray:
        """The filter of each element of all vectors. Shape: (pixel,)."""
        return np.concatenate([np.arange(at, at + self.width) for at in self.vectors])
