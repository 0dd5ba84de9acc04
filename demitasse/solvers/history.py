"""History: what a solver remembers of each parameter between updates."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from demitasse.backends.base import Array
from demitasse.blob import Blob
from demitasse.device import Device
from demitasse.memory import SyncedMemory

__all__ = ["History"]

ALIGNMENT = 16
"""Each parameter's part begins at a multiple of so many elements; what lies between stays zero."""


class History:
    """One or two arrays for each parameter, all those of one sort in one piece of memory.

    The order is that of Caffe's solver states: the first sort for every parameter, then the second.

    Args:
        params: The parameters, each of which has a history of its shape.
        sorts: How many arrays each parameter has.
        dtype: Of the arrays.
        device: Where they live.

    Attributes:
        shapes: The parameters' shapes.
        moving: For each parameter, whether its history may be other than zero.
    """

    def __init__(self, params: Sequence[Blob], sorts: int, dtype: str, device: Device) -> None:
        self.shapes = [blob.shape for blob in params]
        self._counts = [blob.count for blob in params]
        padded = [-(-count // ALIGNMENT) * ALIGNMENT for count in self._counts]
        self._starts = [0, *accumulate(padded)]
        self.memories = [SyncedMemory(self._starts[-1], dtype, device) for _ in range(sorts)]
        self.moving = [False] * len(params)

    def __len__(self) -> int:
        """Return the number of arrays, as a solver state counts them."""
        return len(self.shapes) * len(self.memories)

    def to(self, device: Device) -> None:
        """Live on another device from now on; the contents follow when they are used."""
        for memory in self.memories:
            if memory.device is not device:
                memory.to(device)

    def views(self) -> list[list[Array]]:
        """Return, for each parameter, its arrays on the device, to be written. Shape: (count,)."""
        whole = [memory.mutable_gpu_data() for memory in self.memories]
        spans = zip(self._starts, self._counts, strict=False)
        return [[flat[start : start + count] for flat in whole] for start, count in spans]

    def arrays(self) -> list[np.ndarray]:
        """Return all arrays on the host, for reading, in their parameters' shapes."""
        return [
            memory.cpu_data()[start : start + count].reshape(shape)
            for memory in self.memories
            for start, count, shape in zip(self._starts, self._counts, self.shapes, strict=False)
        ]

    def load(self, arrays: Sequence[np.ndarray]) -> None:
        """Take all arrays, in the same order; each has its parameter's number of elements."""
        many = len(self.shapes)
        for sort, memory in enumerate(self.memories):
            host = memory.mutable_cpu_data()
            own = arrays[sort * many : (sort + 1) * many]
            for start, count, array in zip(self._starts, self._counts, own, strict=False):
                host[start : start + count] = array.reshape(-1)
        self.moving = [any(array.any() for array in arrays[i::many]) for i in range(many)]
