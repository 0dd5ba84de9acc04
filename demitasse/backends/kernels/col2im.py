"""col2im: sums of a deconvolution's overlapping windows, one for each pixel.

A row of the output is processed in groups of a stride's pixels. Each group sums the same number of
windows: a stride's adjacent pixels of each, with all channels. If windows are no whole number of
strides, the last window has fewer pixels.
"""

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.bound import BoundKernel
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Output, Struct
from demitasse.backends.kernels.language.values import FLOAT, Word, maximum, minimum
from demitasse.backends.kernels.tuning import Tuning

Shape = tuple[int, ...]


class Col2ImFields(Struct):
    """Windows of (rows, columns, channels), and images in the same layout."""

    x: Address
    """The windows, one for each pixel of the bottom."""
    y: Output
    offsets: Address
    """The channels' offsets, repeated for each pixel of a group."""
    images: Word
    bottom_rows: Word
    bottom_columns: Word
    rows: Word
    columns: Word
    channels: Word
    row_pad: Word
    column_pad: Word
    row_stride: Word
    """Rows from one window to the next."""
    column_stride: Word
    """Columns from one window to the next."""
    column_windows: Word
    """Greatest number of adjacent windows that overlap."""
    window_rows: Word
    window_columns: Word
    window_count: Word
    """Elements of a window."""


@Col2ImFields.kernel("overlaps")
def _kernel(k: Kernel, f: Col2ImFields, *, whole: bool) -> None:
    """Write the kernel; with ``whole``, for windows of whole strides only."""
    window_bytes, row_bytes = f.window_count * FLOAT, f.window_columns * f.channels * FLOAT
    group_bytes = f.column_stride * f.channels * FLOAT
    first_group = f.column_pad // f.column_stride
    groups = (f.columns + f.column_pad + f.column_stride - 1) // f.column_stride
    with k.parallel_loop(f.images, f.rows) as (image, line):
        row, y = line + f.row_pad, f.y + (image * f.rows + line) * f.columns * f.channels * FLOAT
        lowest, place = row // f.row_stride, row % f.row_stride
        rows = _those(lowest, f.bottom_rows, (f.window_rows - place - 1) // f.row_stride + 1)
        with k.loop(groups, first_group) as group:
            before = group.i * f.column_stride - f.column_pad  # columns of the image
            skipped = maximum(-before, 0) * f.channels
            stop = minimum(f.columns - before, f.column_stride) * f.channels
            target = y + before * f.channels * FLOAT
            columns = _those(group.i, f.bottom_columns, f.column_windows)
            with k.loop(stop, skipped, k.width) as some:
                first = k.lane_mask(stop - some.i)
                total = k.load(f.offsets + some.i * FLOAT, first)
                with k.loop(rows[1], rows[0], vectors=[total]) as down:
                    bottom = image * f.bottom_rows + lowest - down.i
                    at = f.x + bottom * f.bottom_columns * window_bytes + some.i * FLOAT
                    at = at + (place + down.i * f.row_stride) * row_bytes
                    with k.loop(columns[1], columns[0], vectors=down.vectors) as right:
                        here = at + (group.i - right.i) * window_bytes + right.i * group_bytes
                        there = first
                        if not whole:
                            left = f.window_columns - right.i * f.column_stride
                            there = k.lane_mask(minimum(stop, left * f.channels) - some.i)
                        right.vectors = [right.vectors[0] + k.load(here, there)]
                    down.vectors = right.vectors
                k.store(down.vectors[0], target + some.i * FLOAT, first)


def _those(last: Word, count: Word, overlap: Word) -> tuple[Word, Word]:
    """Return the range of existing windows, counted back from the ``last``."""
    return maximum(last - count + 1, 0), minimum(last + 1, overlap)


class Col2Im(BoundKernel):
    """y = the sum of the windows over each pixel, and offsets.

    A call takes the windows, (N, H, W, *kernel, C), and y, (N, H, W, C).

    Args:
        bottom: (N, H, W), of the windows.
        top: (N, H, W, C), of the result.
        kernel: Rows and columns of a window, a stride at least.
        stride: Rows and columns from one window to the next.
        pad: Rows and columns that windows begin outside.
    """

    def __init__(
        self, bottom: Shape, top: Shape, kernel: Shape, stride: Shape, pad: Shape, tuning: Tuning
    ) -> None:
        self._offsets = aligned(stride[1] * top[3])
        values = Col2ImFields.values(
            offsets=self._offsets, images=top[0], bottom_rows=bottom[1], bottom_columns=bottom[2],
            rows=top[1], columns=top[2], channels=top[3], row_pad=pad[0], column_pad=pad[1],
            row_stride=stride[0], column_stride=stride[1],
            column_windows=-(-kernel[1] // stride[1]), window_rows=kernel[0],
            window_columns=kernel[1], window_count=kernel[0] * kernel[1] * top[3],
        )  # fmt: skip
        whole = kernel[1] % stride[1] == 0
        super().__init__("overlaps", _kernel(tuning.width, whole=whole), values, tuning)

    def take_offsets(self, offsets: np.ndarray) -> None:
        """Copy new offsets of the channels. Shape: (C,)."""
        self._offsets.reshape(-1, offsets.size)[...] = offsets
