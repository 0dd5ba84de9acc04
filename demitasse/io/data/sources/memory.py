"""Arrays in memory as sources of batches.

Source: Caffe, ``src/caffe/layers/memory_data_layer.cpp``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from demitasse.errors import DataError, ErrorCode, ShapeError

__all__ = ["MemoryRows"]


class MemoryRows:
    """Rows of data and their labels, returned batch by batch as views.

    Later changes by the caller are visible if an array has the net's dtype and is contiguous and
    writable; other arrays are copied once.

    Args:
        data: Shape: (n, *shape).
        labels: One per row: shape (n,), or (n, 1, ...).
        shape: Shape of a row.
        dtype: The net's dtype.

    Raises:
        ShapeError: There are no rows, their shape differs, or the number of labels differs.
    """

    def __init__(self, data: Any, labels: Any, shape: tuple[int, ...], dtype: str) -> None:
        self.data = np.require(data, dtype, ["C", "W"])
        if self.data.shape[1:] != shape or not len(self.data):
            message = f"got data of {self.data.shape}, expected (n, *{shape}), n above 0"
            raise ShapeError(
                message, code=ErrorCode.SHAPE_MISMATCH, got=self.data.shape, expected=shape
            )
        self.labels = np.require(labels, dtype, ["C", "W"])
        if self.labels.size != len(self.data) or self.labels.shape[:1] != self.data.shape[:1]:
            rows, got = len(self.data), self.labels.shape
            message = f"got labels of {got}, expected {rows}, one per row of the data"
            raise ShapeError(message, code=ErrorCode.COUNT_MISMATCH, got=got, expected=rows)
        self.labels = self.labels.reshape(-1)
        self.at = 0

    def need_multiple_of(self, batch_size: int) -> None:
        """Refuse a number of rows that is no multiple of the batch size.

        Raises:
            DataError: The number of rows is no multiple.
        """
        if len(self.data) % batch_size:
            message = (
                f"got {len(self.data)} rows, expected a multiple of the batch size {batch_size}; "
                "change the number of rows or the batch size"
            )
            raise DataError(
                message,
                code=ErrorCode.COUNT_MISMATCH,
                got=len(self.data),
                expected=batch_size,
            )

    def take(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return views of the next ``count`` rows and of their labels; wraps around at the end."""
        part = slice(self.at, self.at + count)
        self.at = (self.at + count) % len(self.data)
        return self.data[part], self.labels[part]
