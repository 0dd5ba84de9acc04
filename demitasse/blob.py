"""Blob: an n-dimensional array with a gradient, the data that flows through a net.

Source: Caffe, ``src/caffe/blob.cpp``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from demitasse.axes import LEGACY, Axes, checked_shape, flat_list, shape_string
from demitasse.backends.arrays import Array
from demitasse.device import Device, current_device
from demitasse.errors import ShapeError
from demitasse.memory import Head, SyncedMemory
from demitasse.proto import BlobProto, BlobShape, floats, set_floats, stored_shape

__all__ = ["Blob", "Changes"]

_numbers = itertools.count(1)


class Changes:
    """Tells whether some blob of a net has changed its shape or its memory.

    A plan compares one integer to know that nothing has moved since it was made.

    Attributes:
        number: Of the last change. No number comes twice in a process, so none is lost when
            threads note changes at the same time.
    """

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0

    def note(self) -> None:
        """Note a change."""
        self.number = next(_numbers)


class Blob(Axes):
    """Data and its gradient (``diff``), both of one shape.

    Args:
        shape: Sizes of the axes, each at least 0; at most 32 of them.
        dtype: "float32", "float64", or an integer type for internal use.
        device: Where it lives; the current device by default.
        name: What it is called in messages.

    Raises:
        ShapeError: An axis is negative, or there are too many.
    """

    def __init__(
        self,
        shape: Sequence[int] = (),
        dtype: str = "float32",
        device: str | Device | None = None,
        name: str = "",
    ) -> None:
        self.dtype = dtype
        self.device = current_device() if device is None else Device(device)
        super().__init__(shape, name)
        self._data, self._diff = self._new_memory(self._count), self._new_memory(self._count)
        self._told: tuple[Changes, ...] = ()

    def tell(self, changes: Changes) -> None:
        """Note changes of shape and memory there from now on; a blob may be of several nets."""
        if changes not in self._told:
            self._told = (*self._told, changes)

    def _note(self) -> None:
        """Note a change, before it is made: one that is interrupted must not stay unknown."""
        for changes in self._told:
            changes.note()

    def _new_memory(self, count: int) -> SyncedMemory:
        return SyncedMemory(count, self.dtype, self.device)

    # -- shape ---------------------------------------------------------------------------------

    def reshape(self, *shape: int | Iterable[int] | BlobShape) -> None:
        """Change the shape; memory is renewed only when it is too small, and never shrinks.

        Args:
            shape: Integers, one tuple or list, or one BlobShape.

        Raises:
            ShapeError: An axis is negative, or there are more than 32.
        """
        new = checked_shape(_dims(shape))
        if new == self._shape:
            return
        count, data, diff = math.prod(new), self._data, self._diff
        if count > min(data.size, diff.size):
            # both are renewed, as in Caffe, so whatever was shared no longer is
            data, diff = self._new_memory(count), self._new_memory(count)
        self._note()
        # in one statement, so that no interrupt leaves a shape without the memory for it
        self._shape, self._count, self._data, self._diff = new, count, data, diff

    def reshape_like(self, other: Blob) -> None:
        """Take the shape of another blob."""
        self.reshape(other.shape)

    def data_at(self, *indices: int | Sequence[int]) -> float:
        """Return one element of the data."""
        return float(self._data.cpu_data()[self.offset(*indices)])

    def diff_at(self, *indices: int | Sequence[int]) -> float:
        """Return one element of the gradient."""
        return float(self._diff.cpu_data()[self.offset(*indices)])

    # -- memory --------------------------------------------------------------------------------

    @property
    def data_memory(self) -> SyncedMemory:
        """The memory of the data, perhaps shared with other blobs."""
        return self._data

    @property
    def diff_memory(self) -> SyncedMemory:
        """The memory of the gradient, perhaps shared with other blobs."""
        return self._diff

    def share_data(self, other: Blob) -> None:
        """Hold the same data memory as ``other``, which must have the same count."""
        self._need_same_count(other)
        if self._data is not other._data:
            self._note()
            self._data = other._data

    def share_diff(self, other: Blob) -> None:
        """Hold the same gradient memory as ``other``, which must have the same count."""
        self._need_same_count(other)
        if self._diff is not other._diff:
            self._note()
            self._diff = other._diff

    def to(self, device: Device) -> None:
        """Move to another device; the contents are copied when they are next used."""
        self.device = device
        self._data.to(device)
        self._diff.to(device)

    def set_cpu_data(self, array: np.ndarray) -> None:
        """Adopt a host array of our count as the data, without copying."""
        self._adopt(array, Head.HEAD_AT_CPU)

    def set_gpu_data(self, array: Array) -> None:
        """Adopt a device array of our count as the data, without copying."""
        self._adopt(array, Head.HEAD_AT_GPU)

    def _adopt(self, array: Array, side: Head) -> None:
        if math.prod(array.shape) != self._count:
            message = (
                f"cannot adopt an array of shape {tuple(array.shape)} as the data of "
                f"{self._called()} {self.shape_string}"
            )
            raise ShapeError(message)
        if self._data.size != self._count:  # both sides of both memories are renewed, as in Caffe
            data, diff = self._new_memory(self._count), self._new_memory(self._count)
            self._note()
            self._data, self._diff = data, diff
        if side is Head.HEAD_AT_CPU:
            self._data.set_cpu_data(array.reshape(-1))
        else:
            self._data.set_gpu_data(self.device.backend.xp.reshape(array, (-1,)))

    # -- for people: host views ----------------------------------------------------------------

    @property
    def data(self) -> np.ndarray:
        """The data as a live, writable numpy view. Shape: ``shape``."""
        return self._data.lease()[: self._count].reshape(self._shape)

    @data.setter
    def data(self, value: Any) -> None:
        self.mutable_cpu_data()[...] = value

    @property
    def diff(self) -> np.ndarray:
        """The gradient as a live, writable numpy view. Shape: ``shape``."""
        return self._diff.lease()[: self._count].reshape(self._shape)

    @diff.setter
    def diff(self, value: Any) -> None:
        self.mutable_cpu_diff()[...] = value

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
        self.buffer()[...] = array

    def write_diff(self, array: Array) -> None:
        """Copy ``array``, which must have exactly our shape, into the gradient."""
        self._need_shape(array)
        self.diff_buffer()[...] = array

    def add_diff(self, array: Array) -> None:
        """Add ``array``, which must have exactly our shape, to the gradient."""
        if self._diff.cleared:  # nothing to add to
            self.write_diff(array)
            return
        self._need_shape(array)
        view = self._view(self._diff.mutable_gpu_data())
        view += array

    def set_diff(self, value: float) -> None:
        """Fill the gradient with one number."""
        self.diff_buffer()[...] = value

    # -- arithmetic ----------------------------------------------------------------------------

    def update(self) -> None:
        """Subtract the gradient from the data, where the data's newest side is.

        Raises:
            ShapeError: The data was never written, or this is an integer blob.
        """
        self._need_float("update")
        match self._data.head:
            case Head.UNINITIALIZED:
                message = f"update of {self._called()} whose data was never written"
                raise ShapeError(message)
            case Head.HEAD_AT_CPU:
                host = self.mutable_cpu_data()
                host -= self.cpu_diff()
            case _:
                diff = self.gpu_diff()
                view = self.mutable_gpu_data()
                view -= diff

    def asum_data(self) -> float:
        """Return the sum of absolute values of the data."""
        return self._norm(self._data, power=1)

    def asum_diff(self) -> float:
        """Return the sum of absolute values of the gradient."""
        return self._norm(self._diff, power=1)

    def sumsq_data(self) -> float:
        """Return the sum of squares of the data."""
        return self._norm(self._data, power=2)

    def sumsq_diff(self) -> float:
        """Return the sum of squares of the gradient."""
        return self._norm(self._diff, power=2)

    def scale_data(self, factor: float) -> None:
        """Multiply the data by a number."""
        self._scale(self._data, factor)

    def scale_diff(self, factor: float) -> None:
        """Multiply the gradient by a number."""
        self._scale(self._diff, factor)

    def _norm(self, memory: SyncedMemory, power: int) -> float:
        self._need_float("norm")
        if memory.cleared:
            return 0.0
        if memory.head is Head.HEAD_AT_CPU:
            host = memory.cpu_data()[: self._count]
            return float(np.sum(np.abs(host)) if power == 1 else np.dot(host, host))
        xp = self.device.backend.xp
        flat = self._view(memory.gpu_data())
        return float(xp.sum(xp.abs(flat)) if power == 1 else xp.sum(flat * flat))

    def _scale(self, memory: SyncedMemory, factor: float) -> None:
        self._need_float("scale")
        if memory.cleared:
            return
        if memory.head is Head.HEAD_AT_CPU:
            host = memory.mutable_cpu_data()[: self._count]
            host *= host.dtype.type(factor)
            return
        view = self._view(memory.mutable_gpu_data())
        view *= factor

    def copy_from(self, source: Blob, copy_diff: bool = False, reshape: bool = False) -> None:
        """Copy the data, or else the gradient, of another blob on the current device's side.

        Raises:
            ShapeError: The shapes differ and ``reshape`` is false.
        """
        if source.shape != self._shape:
            if not reshape:
                message = (
                    f"cannot copy {source.shape_string} into {self._called()} {self.shape_string}; "
                    "pass reshape=True to take its shape"
                )
                raise ShapeError(message)
            self.reshape_like(source)
        mine, theirs = (self._diff, source._diff) if copy_diff else (self._data, source._data)
        if mine is theirs:
            return
        if source.device is self.device and not self.device.shares_host:
            value = source._view(theirs.gpu_data())
            self._view(mine.mutable_gpu_data(discard=True))[...] = value
        else:
            value = theirs.cpu_data()[: self._count]
            mine.mutable_cpu_data(discard=True)[: self._count] = value

    # -- messages ------------------------------------------------------------------------------

    def shape_equals(self, proto: BlobProto) -> bool:
        """Whether a message has our shape; legacy dimensions are compared from the end."""
        if any(proto.HasField(name) for name in LEGACY):
            legacy = tuple(getattr(proto, name) for name in LEGACY)
            return self.num_axes <= 4 and legacy == tuple(
                self.legacy_shape(i) for i in range(-4, 0)
            )
        return tuple(proto.shape.dim) == self._shape

    def from_proto(self, proto: BlobProto, reshape: bool = True) -> None:
        """Take the shape, the data and, where there is one, the gradient of a message.

        Raises:
            ShapeError: With ``reshape`` false, the shapes differ; or its shape and the number of
                its values do.
        """
        if reshape:
            self.reshape(stored_shape(proto))
        elif not self.shape_equals(proto):
            message = (
                f"{self._called()} is {self.shape_string}, "
                f"the message is {shape_string(stored_shape(proto))}"
            )
            raise ShapeError(message)
        self.set_floats(floats(proto), floats(proto, diff=True))

    def set_floats(self, data: np.ndarray, diff: np.ndarray) -> None:
        """Take the data and, where it is not empty, the gradient. Shapes: (count,).

        Raises:
            ShapeError: There are more or fewer values than the blob has.
        """
        self._fill(self._data, data, "values")
        if diff.size:
            self._fill(self._diff, diff, "gradient values")

    def to_proto(self, write_diff: bool = False) -> BlobProto:
        """Return a message with the shape, the data and, if asked, the gradient."""
        proto = BlobProto()
        if self._shape:  # Caffe writes no shape for a blob without axes
            proto.shape.dim.extend(self._shape)
        set_floats(proto, self.cpu_data().reshape(-1))
        if write_diff:
            set_floats(proto, self.cpu_diff().reshape(-1), diff=True)
        return proto

    def _fill(self, memory: SyncedMemory, values: np.ndarray, what: str) -> None:
        if values.size != self._count:
            message = (
                f"{self._called()} {self.shape_string} cannot be filled with {values.size} {what}"
            )
            raise ShapeError(message)
        memory.mutable_cpu_data(discard=True)[: self._count] = values

    # -- details -------------------------------------------------------------------------------

    def _view(self, flat: Array) -> Array:
        return self.device.backend.view(flat, self._shape, self._count)

    def _need_shape(self, array: Array) -> None:
        if tuple(array.shape) != self._shape:
            message = f"{self._called()} is {self._shape}, the array written is {array.shape}"
            raise ShapeError(message)

    def _need_same_count(self, other: Blob) -> None:
        if other.count != self._count:
            message = (
                f"{self._called()} {self.shape_string} cannot share the memory of "
                f"{other._called()} {other.shape_string}"
            )
            raise ShapeError(message)

    def _need_float(self, what: str) -> None:
        if not self.dtype.startswith("float"):
            message = f"{what} of {self._called()} of {self.dtype}: only float blobs have it"
            raise ShapeError(message)

    def __repr__(self) -> str:
        name = f"{self.name!r} " if self.name else ""
        return f"Blob({name}{self.shape_string} {self.dtype} on {self.device})"

    def __copy__(self) -> Blob:
        message = "a blob is not copied by assignment; use copy_from or share_data"
        raise TypeError(message)

    def __deepcopy__(self, memo: object) -> Blob:
        return self.__copy__()


def _dims(given: tuple[Any, ...]) -> list[int]:
    if len(given) == 1 and isinstance(given[0], BlobShape):
        return list(given[0].dim)
    return flat_list(given)
