"""What people, libraries and layers see of a blob: arrays on the host and on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from demitasse.backends.arrays import Array
from demitasse.backends.storage import Stored
from demitasse.blob.given import host_array, is_on
from demitasse.blob.storage import Storage
from demitasse.errors import ErrorCode, ShapeError

__all__ = ["Views"]


class Views(Storage):
    """Data and gradient as arrays of the blob's shape, on either side, to be read or written."""

    # -- for people: host views ----------------------------------------------------------------

    @property
    def data(self) -> np.ndarray:
        """The data as a live, writable numpy view. Shape: ``shape``."""
        return self._data.live_view()[: self._count].reshape(self._shape)

    @data.setter
    def data(self, value: Any) -> None:
        if is_on(value, self.device):
            self.write(self._of_our_dtype(value))
        else:
            self.mutable_cpu_data()[...] = host_array(value, self._called(), self.device)

    @property
    def diff(self) -> np.ndarray:
        """The gradient as a live, writable numpy view. Shape: ``shape``."""
        return self._diff.live_view()[: self._count].reshape(self._shape)

    @diff.setter
    def diff(self, value: Any) -> None:
        if is_on(value, self.device):
            self.write_diff(self._of_our_dtype(value))
        else:
            self.mutable_cpu_diff()[...] = host_array(value, self._called(), self.device)

    def cpu_data(self) -> np.ndarray:
        """Return the data on the host, for reading."""
        return self._data.cpu_data()[: self._count].reshape(self._shape)

    def mutable_cpu_data(self) -> np.ndarray:
        """Return the data on the host, for writing."""
        return self._data.mutable_cpu_data()[: self._count].reshape(self._shape)

    def cpu_diff(self) -> np.ndarray:
        """Return the gradient on the host, for reading."""
        return self._diff.cpu_data()[: self._count].reshape(self._shape)

    def mutable_cpu_diff(self) -> np.ndarray:
        """Return the gradient on the host, for writing."""
        return self._diff.mutable_cpu_data()[: self._count].reshape(self._shape)

    def gpu_data(self) -> Array:
        """Return the data on the device, for reading."""
        return self._view(self._data.gpu_data())

    def mutable_gpu_data(self) -> Array:
        """Return the data on the device, for writing."""
        return self._view(self._data.mutable_gpu_data())

    def gpu_diff(self) -> Array:
        """Return the gradient on the device, for reading."""
        return self._view(self._diff.gpu_data())

    def mutable_gpu_diff(self) -> Array:
        """Return the gradient on the device, for writing."""
        return self._view(self._diff.mutable_gpu_data())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        host = self.cpu_data()
        if copy is False and dtype not in (None, host.dtype):
            message = f"a {host.dtype} blob cannot be seen as {dtype} without a copy"
            raise ValueError(message)
        return np.array(host, dtype=dtype) if copy is not False else host

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.mutable_gpu_data().__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self.gpu_data().__dlpack_device__()

    @property
    def __cuda_array_interface__(self) -> Any:
        return self.mutable_gpu_data().__cuda_array_interface__

    @property
    def _gpu_data_ptr(self) -> int:
        """Address of the data on the GPU, to be written, for libraries that take one; pycaffe's."""
        return int(self.__cuda_array_interface__["data"][0])

    @property
    def _gpu_diff_ptr(self) -> int:
        """Address of the gradient on the GPU, to be written."""
        return int(self.mutable_gpu_diff().__cuda_array_interface__["data"][0])

    def data_at(self, *indices: int | Sequence[int]) -> float:
        """Return one element of the data."""
        return float(self._data.cpu_data()[self.offset(*indices)])

    def diff_at(self, *indices: int | Sequence[int]) -> float:
        """Return one element of the gradient."""
        return float(self._diff.cpu_data()[self.offset(*indices)])

    # -- for layers: device arrays -------------------------------------------------------------

    def read(self) -> Array:
        """Return the data on the device. Not to be written, nor kept after the method returns."""
        return self.device.backend.guard(self._view(self._data.gpu_data()))

    def read_diff(self) -> Array:
        """Return the gradient on the device. Not to be written, nor kept."""
        return self.device.backend.guard(self._view(self._diff.gpu_data()))

    def buffer(self) -> Array:
        """Return the data's device array, to be overwritten completely."""
        return self._view(self._data.mutable_gpu_data(discard=True))

    def diff_buffer(self) -> Array:
        """Return the gradient's device array, to be overwritten completely."""
        return self._view(self._diff.mutable_gpu_data(discard=True))

    def write(self, array: Array) -> None:
        """Copy ``array``, which must have exactly our shape, into the data.

        Raises:
            ShapeError: It has another shape.
        """
        self._need_shape(array)
        with self.device.backend.here():
            if self._data.storage == "float":
                self.buffer()[...] = array
            else:
                self._data.overwrite(array)

    def read_narrow(self, storage: Stored) -> Array:
        """Return the data on the device in 16 bits. Not to be written, nor kept."""
        return self._view(self._data.narrow_data(storage))

    def narrow_buffer(self, storage: Stored) -> Array:
        """Return the data's device array of 16 bits, to be overwritten completely."""
        return self._view(self._data.mutable_narrow_data(storage))

    def write_diff(self, array: Array) -> None:
        """Copy ``array``, which must have exactly our shape, into the gradient."""
        self._need_shape(array)
        with self.device.backend.here():
            self.diff_buffer()[...] = array

    def add_diff(self, array: Array) -> None:
        """Add ``array``, which must have exactly our shape, to the gradient."""
        if self._diff.cleared:  # nothing to add to
            self.write_diff(array)
            return
        self._need_shape(array)
        with self.device.backend.here():
            view = self._view(self._diff.mutable_gpu_data())
            view += array

    def set_diff(self, value: float) -> None:
        """Fill the gradient with one number."""
        with self.device.backend.here():
            self.diff_buffer()[...] = value

    def _of_our_dtype(self, array: Array) -> Array:
        backend = self.device.backend
        return backend.xp.astype(array, backend.dtype(self.dtype), copy=False)

    def _need_shape(self, array: Array) -> None:
        if tuple(array.shape) != self._shape:
            message = f"{self._called()} is {self._shape}, the array written is {array.shape}"
            raise ShapeError(
                message,
                code=ErrorCode.SHAPE_MISMATCH,
                blob=self.name,
                got=tuple(array.shape),
                expected=self._shape,
            )
