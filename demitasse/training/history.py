"""History: what a solver remembers of each parameter between updates."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from demitasse.backends.arrays import Array, PrivateLayout
from demitasse.blob import Blob
from demitasse.core.device import Device
from demitasse.memory import SyncedMemory

__all__ = ["History"]

CALLED = "the history of the solver"
"""What it is called in messages."""

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
        orders: For each parameter, the private layout its arrays are in; None for C order.
    """

    def __init__(self, params: Sequence[Blob], sorts: int, dtype: str, device: Device) -> None:
        self.shapes = [blob.shape for blob in params]
        self._counts = [blob.count for blob in params]
        padded = [-(-count // ALIGNMENT) * ALIGNMENT for count in self._counts]
        self._starts = [0, *accumulate(padded)]
        self.memories = [
            SyncedMemory(self._starts[-1], dtype, device, CALLED) for _ in range(sorts)
        ]
        self.moving = [False] * len(params)
        self.orders: list[PrivateLayout | None] = [None] * len(params)
        self._apart: dict[int, list[np.ndarray]] = {}

    def __len__(self) -> int:
        """Return the number of arrays, as a solver state counts them."""
        return len(self.shapes) * len(self.memories)

    def to(self, device: Device) -> None:
        """Move to another device; the contents are copied when they are next used."""
        if all(memory.device is device for memory in self.memories):
            return
        for index in range(len(self.orders)):
            self.order(index, None)
        for memory in self.memories:
            memory.to(device)

    def order(self, index: int, layout: PrivateLayout | None) -> None:
        """Put a parameter's arrays in the order of a private layout; None for C order.

        An update can then work on weights and gradients where a backend keeps them. Arrays with
        padding, which must stay zero, get memory of their own.
        """
        before, device = self.orders[index], self.memories[0].device
        if before is layout:
            return
        plains = [_plain(part, before, device, self._counts[index]) for part in self.parts(index)]
        self.orders[index] = layout
        self._apart.pop(index, None)
        if layout is not None and layout.size != self._counts[index]:
            self._apart[index] = [device.backend.empty_private(layout.size) for _ in plains]
        for part, plain in zip(self.parts(index), plains, strict=True):
            if layout is None:
                part[...] = plain
            else:
                device.backend.pack(plain, layout, part)

    def parts(self, index: int) -> list[np.ndarray]:
        """Return a parameter's arrays on the host, in the order they are in, to be written."""
        if index in self._apart:
            return self._apart[index]
        start, count = self._starts[index], self._counts[index]
        return [memory.mutable_cpu_data()[start : start + count] for memory in self.memories]

    def views(self) -> list[list[Array]]:
        """Return, for each parameter, its arrays on the device, to be written. Shape: (count,)."""
        whole = [memory.mutable_gpu_data() for memory in self.memories]
        spans = zip(self._starts, self._counts, strict=False)
        return [[flat[start : start + count] for flat in whole] for start, count in spans]

    def arrays(self) -> list[np.ndarray]:
        """Return all arrays on the host, for reading, in their parameters' shapes."""
        found: list[list[np.ndarray]] = [[] for _ in self.memories]
        for index, shape in enumerate(self.shapes):
            start, count = self._starts[index], self._counts[index]
            for sort, memory in enumerate(self.memories):
                order, part = self.orders[index], memory.cpu_data()[start : start + count]
                if order is not None:
                    part = _plain(self.parts(index)[sort], order, memory.device, count)
                found[sort].append(part.reshape(shape))
        return [array for sort in found for array in sort]

    def load(self, arrays: Sequence[np.ndarray]) -> None:
        """Take all arrays, in the same order; each has its parameter's number of elements."""
        many = len(self.shapes)
        self.orders, self._apart = [None] * many, {}
        for sort, memory in enumerate(self.memories):
            host = memory.mutable_cpu_data()
            own = arrays[sort * many : (sort + 1) * many]
            with np.errstate(over="ignore", invalid="ignore"):  # of doubles, as in C
                for start, count, array in zip(self._starts, self._counts, own, strict=False):
                    host[start : start + count] = array.reshape(-1)
        self.moving = [any(array.any() for array in arrays[i::many]) for i in range(many)]


def _plain(part: np.ndarray, order: PrivateLayout | None, device: Device, count: int) -> np.ndarray:
    """Return a copy in C order. Shape: (count,)."""
    if order is None:
        return part.copy()
    plain = device.backend.empty_host(count, part.dtype.name)
    device.backend.unpack(part, order, plain)
    return plain
