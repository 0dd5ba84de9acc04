"""Arrays of a caller as sources of batches.

Source: Caffe, ``src/caffe/layers/memory_data_layer.cpp``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from demitasse.errors import DataError, ShapeError

__all__ = ["MemoryRows"]


class MemoryRows:
    """Rows of data and their labels, handed out batch by batch without being copied.

    What the caller writes into its arrays later is seen, as long as they have the net's dtype and
    are contiguous and writable; others are copied once.

    Args:
        data: Shape: (n, *shape).
        labels: One for each row: shape (n,), or (n, 1, ...).
        shape: Shape of a row.
        dtype: What the net computes in.

    Raises:
        ShapeError: There are no rows, they have another shape, or there are fewer or more labels.
    """

    def __init__(self, data: Any, labels: Any, shape: tuple[int, ...], dtype: str) -> None:
        self.data = np.require(data, dtype, ["C", "W"])
        if self.data.shape[1:] != shape or not len(self.data):
            message = f"the data must be (n, *{shape}), n above 0, it is {self.data.shape}"
            raise ShapeError(message)
        self.labels = np.require(labels, dtype, ["C", "W"])
        if self.labels.size != len(self.data) or self.labels.shape[:1] != self.data.shape[:1]:
            message = f"there are {len(self.data)} rows, but the labels are {self.labels.shape}"
            raise ShapeError(message)
        self.labels = self.labels.reshape(-1)
        self.at = 0

    def need_multiple_of(self, batch_size: int) -> None:
        """Refuse a number of rows that batches of a size do not use up.

        Raises:
            DataError: It is not a multiple.
        """
        if len(self.data) % batch_size:
            message = (
                f"{len(self.data)} rows are not a multiple of the batch size {batch_size}; "
                "give fewer or more rows, or change the batch size first"
            )
            raise DataError(message)

    def take(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return views of the next ``count`` rows and of their labels; begin again at the end."""
        part = slice(self.at, self.at + count)
        self.at = (self.at + count) % len(self.data)
        return self.data[part], self.labels[part]
