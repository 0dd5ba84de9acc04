"""Devices for tests: read-only arrays, and the strict array API."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from demitasse.backends.arrays import Array
from demitasse.backends.base import Backend
from demitasse.backends.numpy.backend import NumpyBackend
from demitasse.backends.step import Lowerings


class ReadonlyBackend(NumpyBackend):
    """For tests: portable layers and updates only, on views that must not be written."""

    name = "readonly"
    lowerings: ClassVar[Lowerings] = {}
    updates = None

    @classmethod
    def devices(cls) -> list[str]:
        return ["readonly"]

    def guard(self, array: np.ndarray) -> np.ndarray:
        view = array.view()
        view.flags.writeable = False
        return view


class StrictBackend(Backend):
    """``array_api_strict`` with real copies on every transfer."""

    name = "strict"
    default_index = "device1"

    def __init__(self, index: str = "") -> None:
        super().__init__(index or self.default_index)
        import array_api_strict

        self.xp: Any = array_api_strict
        self.array_device = array_api_strict.Device(self.index)
        self._host = array_api_strict.Device("CPU_DEVICE")

    @classmethod
    def devices(cls) -> list[str]:
        try:
            import array_api_strict  # noqa: F401 - an optional library
        except ImportError:
            return []
        return ["strict:device1"]

    @classmethod
    def has(cls, index: str) -> bool:
        """Return whether ``array_api_strict`` has the device, listed in ``devices`` or not."""
        import array_api_strict

        try:
            array_api_strict.Device(index)
        except ValueError:
            return False
        return True

    @classmethod
    def missing(cls) -> str:
        return "the strict backend needs array-api-strict: pip install array-api-strict"

    @contextmanager
    def enter(self) -> Iterator[None]:
        with np.errstate(all="ignore"):  # it computes with numpy
            yield

    def zeros(self, size: int, dtype: str) -> Array:
        return self.xp.zeros(size, dtype=self.dtype(dtype), device=self.array_device)

    def upload(self, host: np.ndarray, device: Array) -> None:
        device[...] = self.asarray(host)

    def download(self, device: Array, host: np.ndarray) -> None:
        host[...] = self.to_host(device)

    def asarray(self, host: np.ndarray) -> Array:
        # without copy=True the array would be a view of the host's memory
        return self.xp.asarray(host, device=self.array_device, copy=True)

    def to_host(self, array: Array) -> np.ndarray:
        return np.array(array.to_device(self._host))

    def scatter(self, values: Array, indices: Array, size: int) -> Array:
        # the standard has no assignment to an array of indices
        host = self.to_host(values)
        result = np.zeros(size, host.dtype)
        result[self.to_host(indices)] = host
        return self.asarray(result)
