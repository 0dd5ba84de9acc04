"""Where gradients are added up: in the host's memory, or on the device that computes them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np

from demitasse.backends.arrays import Array
from demitasse.core.device import Device
from demitasse.memory import SyncedMemory

__all__ = ["OnDevice", "OnHost", "Where"]


class Where(Protocol):
    """One side of a net's memories.

    Attributes:
        xp: The namespace of its arrays.
    """

    xp: Any

    def here(self) -> AbstractContextManager[None]:
        """Surround work on its arrays."""

    def zeros(self, size: int, dtype: str) -> Array:
        """Return a new array. Shape: (size,)."""

    def adopt(self, memory: SyncedMemory, array: Array) -> None:
        """Make an array this side of a memory, and the newest."""

    def holds(self, memory: SyncedMemory, array: Array) -> bool:
        """Whether an array is this side of a memory still."""

    def read(self, memory: SyncedMemory) -> Array:
        """Return this side of a memory, up to date. Shape: (memory.size,)."""

    def overwrite(self, memory: SyncedMemory) -> Array:
        """Return this side of a memory for writing all of it; it is the newest then."""

    def change(self, memory: SyncedMemory) -> Array:
        """Return this side of a memory, up to date, for writing; it is the newest then."""

    def number(self, array: Array) -> float:
        """Return the only element of an array."""


class OnHost:
    """The host's memory."""

    xp: Any = np

    def here(self) -> AbstractContextManager[None]:
        return nullcontext()

    def zeros(self, size: int, dtype: str) -> np.ndarray:
        return np.zeros(size, dtype)

    def adopt(self, memory: SyncedMemory, array: np.ndarray) -> None:
        memory.set_cpu_data(array)

    def holds(self, memory: SyncedMemory, array: np.ndarray) -> bool:
        return bool(memory.cpu_data().ctypes.data == array.ctypes.data)

    def read(self, memory: SyncedMemory) -> np.ndarray:
        return memory.cpu_data()

    def overwrite(self, memory: SyncedMemory) -> np.ndarray:
        return memory.mutable_cpu_data(discard=True)

    def change(self, memory: SyncedMemory) -> np.ndarray:
        return memory.mutable_cpu_data()

    def number(self, array: np.ndarray) -> float:
        return float(array[0])


class OnDevice:
    """The memory of a device.

    Args:
        device: The device; its arrays can be written to.
    """

    def __init__(self, device: Device) -> None:
        self._backend = device.backend
        self.xp = device.backend.xp

    def here(self) -> AbstractContextManager[None]:
        return self._backend.enter()

    def zeros(self, size: int, dtype: str) -> Array:
        return self._backend.zeros(size, dtype)

    def adopt(self, memory: SyncedMemory, array: Array) -> None:
        memory.set_gpu_data(array)

    def holds(self, memory: SyncedMemory, array: Array) -> bool:
        return memory.gpu_data() is array

    def read(self, memory: SyncedMemory) -> Array:
        return memory.gpu_data()

    def overwrite(self, memory: SyncedMemory) -> Array:
        return memory.mutable_gpu_data(discard=True)

    def change(self, memory: SyncedMemory) -> Array:
        return memory.mutable_gpu_data()

    def number(self, array: Array) -> float:
        return float(self._backend.to_host(array)[0])
