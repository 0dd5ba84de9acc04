"""Blob: an n-dimensional array with a gradient, the data that flows through a net.

Source: Caffe, ``src/caffe/blob.cpp``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np

from demitasse.backends.arrays import Array
from demitasse.core import guesses
from demitasse.core.axes import LEGACY, Axes, checked_shape, flat_list, shape_string
from demitasse.core.device import Device, current_device
from demitasse.core.guesses import attribute_error
from demitasse.core.text import html_of
from demitasse.errors import DeviceError, ErrorCode, NetError, ShapeError
from demitasse.io.proto import BlobProto, BlobShape, floats, set_floats, stored_shape
from demitasse.io.proto.zero_copy import StoredArray
from demitasse.memory import Head, SyncedMemory

PART = 1 << 20  # elements copied at a time from values that may be in a file

Values = np.ndarray | StoredArray  # numbers in memory or in a file

_numbers = itertools.count(1)


class VersionCounter:
    """Number of the last change of shape or memory of blobs, unique in the process, for plans."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0

    def note(self) -> None:
        """Count a change."""
        self.number = next(_numbers)


class LearningFactors(Protocol):
    """Factors of a parameter's updates; ``frozen`` parameters stay unchanged, momentum included."""

    lr_mult: float
    decay_mult: float
    frozen: bool


class Blob(Axes):
    """Data and its gradient (``diff``), both of one shape.

    Args:
        shape: Sizes of the axes, each at least 0; at most 32 of them.
        dtype: "float32", "float64", or an integer type for internal use.
        device: The device; by default the current one.
        name: Name in messages.

    Attributes:
        learning_factors: Factors of the updates of a net's parameter; None for other blobs.

    Raises:
        ShapeError: An axis is negative, or there are too many.
    """

    learning_factors: LearningFactors | None = None

    def __init__(
        self, shape: Sequence[int] = (), dtype: str = "float32", device: str | Device | None = None,
        name: str = "",
    ) -> None:  # fmt: skip
        self.dtype = dtype
        self.device = current_device() if device is None else Device(device)
        super().__init__(shape, name)
        self._counters: tuple[VersionCounter, ...] = ()
        self._data, self._diff = self._new_memories(self._count)

    def _new_memories(self, count: int) -> tuple[SyncedMemory, SyncedMemory]:
        """Return memories for data and gradient that no other blob shares."""
        label = self._label()
        return (
            SyncedMemory(count, self.dtype, self.device, label),
            SyncedMemory(count, self.dtype, self.device, f"the gradient of {label}"),
        )

    def subscribe(self, changes: VersionCounter) -> None:
        """Count changes of shape and memory there, too; a blob may be part of several nets."""
        if changes not in self._counters:
            self._counters = (*self._counters, changes)

    def _note(self) -> None:
        """Count a change, before it is made: an interrupted change must be counted, too."""
        for changes in self._counters:
            changes.note()

    # -- shape ---------------------------------------------------------------------------------

    def reshape(self, *shape: int | Iterable[int] | BlobShape) -> None:
        """Change the shape; memory that is too small grows, and never shrinks.

        Memory that another blob shares is replaced instead.

        Args:
            shape: Integers, one tuple or list, or one BlobShape.

        Raises:
            ShapeError: An axis is negative, or there are more than 32.
        """
        if len(shape) == 1 and type(shape[0]) is tuple and shape[0] == self._shape:
            return  # the usual case in a pass
        if len(shape) == 1 and isinstance(shape[0], BlobShape):
            shape = tuple(shape[0].dim)
        new = checked_shape(flat_list(shape))
        if new == self._shape:
            return
        count, data, diff = math.prod(new), self._data, self._diff
        self._note()
        if count > min(data.size, diff.size):
            # both are replaced if shared, as in Caffe, which ends the sharing of either
            more = zip((data, diff), self._new_memories(count), strict=True)
            data, diff = (old if old.grow(count) else new for old, new in more)
        # one statement: an interrupt must not leave a shape without the memory for it
        self._shape, self._count, self._data, self._diff = new, count, data, diff

    def reshape_like(self, other: Axes) -> None:
        """Change the shape to that of another blob."""
        self.reshape(other.shape)

    # -- memory --------------------------------------------------------------------------------

    @property
    def data_memory(self) -> SyncedMemory:
        """The memory of the data, which other blobs may share."""
        return self._data

    @property
    def diff_memory(self) -> SyncedMemory:
        """The memory of the gradient, which other blobs may share."""
        return self._diff

    def share_data(self, other: Blob) -> None:
        """Share the data memory of ``other``, which must have the same count.

        Raises:
            ShapeError: The counts differ.
            DeviceError: The blobs are on devices that do not share memory.
        """
        self._check_sharing(other)
        if self._data is not other._data:
            self._note()
            self._data.shared = other._data.shared = True
            self._data = other._data

    def share_diff(self, other: Blob) -> None:
        """Share the gradient memory of ``other``; raises the errors of ``share_data``."""
        self._check_sharing(other)
        if self._diff is not other._diff:
            self._note()
            self._diff.shared = other._diff.shared = True
            self._diff = other._diff

    def to(self, device: Device) -> None:
        """Move to another device; the contents are copied when they are next used."""
        self.device = device
        self._data.to(device)
        self._diff.to(device)

    def set_cpu_data(self, array: np.ndarray) -> None:
        """Use a host array of the blob's count as the data, without a copy."""
        self._adopt(array, Head.HEAD_AT_CPU)

    def set_gpu_data(self, array: Array) -> None:
        """Use a device array of the blob's count as the data, without a copy."""
        self._adopt(array, Head.HEAD_AT_GPU)

    def _adopt(self, array: Array, side: Head) -> None:
        got = tuple(array.shape)
        if math.prod(got) != self._count:
            message = (
                f"got an array of shape {got} as the data of {self._label()} {self.shape_string}; "
                "the counts must be equal"
            )
            raise self._misfit(message, ErrorCode.COUNT_MISMATCH, got, self._shape)
        if self._data.size != self._count:  # both memories are replaced, as in Caffe
            data, diff = self._new_memories(self._count)
            self._note()
            self._data, self._diff = data, diff
        if side is Head.HEAD_AT_CPU:
            self._data.set_cpu_data(array.reshape(-1))
        else:
            self._data.set_gpu_data(self.device.backend.xp.reshape(array, (-1,)))

    # -- host views ----------------------------------------------------------------------------

    @property
    def data(self) -> np.ndarray:
        """The data as a live, writable numpy view. Shape: ``shape``."""
        return self._data.live_view()[: self._count].reshape(self._shape)

    @data.setter
    def data(self, value: Any) -> None:
        if is_on(value, self.device):
            self.write(self._as_own_dtype(value))
        else:
            self.mutable_cpu_data()[...] = host_array(value, self._label(), self.device)

    @property
    def diff(self) -> np.ndarray:
        """The gradient as a live, writable numpy view. Shape: ``shape``."""
        return self._diff.live_view()[: self._count].reshape(self._shape)

    @diff.setter
    def diff(self, value: Any) -> None:
        if is_on(value, self.device):
            self.write_diff(self._as_own_dtype(value))
        else:
            self.mutable_cpu_diff()[...] = host_array(value, self._label(), self.device)

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
            message = f"a {host.dtype} blob cannot be converted to {dtype} without a copy"
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
        """Address of the data on the GPU, for writing; pycaffe's."""
        return int(self.__cuda_array_interface__["data"][0])

    @property
    def _gpu_diff_ptr(self) -> int:
        """Address of the gradient on the GPU, for writing."""
        return int(self.mutable_gpu_diff().__cuda_array_interface__["data"][0])

    def data_at(self, *indices: int | Sequence[int]) -> float:
        """Return one element of the data."""
        return float(self._data.cpu_data()[self.offset(*indices)])

    def diff_at(self, *indices: int | Sequence[int]) -> float:
        """Return one element of the gradient."""
        return float(self._diff.cpu_data()[self.offset(*indices)])

    # -- device arrays, for layers -------------------------------------------------------------

    def read(self) -> Array:
        """Return the data on the device, read-only and valid until the layer's method returns."""
        return self.device.backend.guard(self._view(self._data.gpu_data()))

    def read_diff(self) -> Array:
        """Return the gradient on the device, read-only and valid until the method returns."""
        return self.device.backend.guard(self._view(self._diff.gpu_data()))

    def buffer(self) -> Array:
        """Return the data's device array, to be overwritten completely."""
        return self._view(self._data.mutable_gpu_data(discard=self._owns_all(self._data)))

    def diff_buffer(self) -> Array:
        """Return the gradient's device array, to be overwritten completely."""
        return self._view(self._diff.mutable_gpu_data(discard=self._owns_all(self._diff)))

    def diff_total(self) -> tuple[Array, bool]:
        """Return the gradient's device array, and True if it has contents to be added to.

        False asks for all elements to be overwritten.
        """
        added = not self._diff.cleared
        return self.mutable_gpu_diff() if added else self.diff_buffer(), added

    def _owns_all(self, memory: SyncedMemory) -> bool:
        """Return whether no other blob has elements of the memory behind those of this one."""
        return not memory.shared or memory.size == self._count

    def write(self, array: Array) -> None:
        """Copy ``array``, which must have exactly the blob's shape, into the data."""
        self._check_shape(array)
        with self.device.backend.device_scope():
            if self._data.storage == "float":
                self.buffer()[...] = array
            else:
                self._data.overwrite(array)

    def write_diff(self, array: Array) -> None:
        """Copy ``array``, which must have exactly the blob's shape, into the gradient."""
        self._check_shape(array)
        with self.device.backend.device_scope():
            if self._diff.storage == "float":
                self.diff_buffer()[...] = array
            else:
                self._diff.overwrite(array)

    def add_diff(self, array: Array) -> None:
        """Add ``array``, which must have exactly the blob's shape, to the gradient."""
        if self._diff.cleared:
            self.write_diff(array)
            return
        self._check_shape(array)
        with self.device.backend.device_scope():
            view = self._view(self._diff.mutable_gpu_data())
            view += array

    def set_diff(self, value: float) -> None:
        """Fill the gradient with one number."""
        with self.device.backend.device_scope():
            self.diff_buffer()[...] = value

    def _as_own_dtype(self, array: Array) -> Array:
        backend = self.device.backend
        return backend.xp.astype(array, backend.dtype(self.dtype), copy=False)

    def _check_shape(self, array: Array) -> None:
        if tuple(array.shape) != self._shape:
            message = f"got an array of shape {array.shape} for {self._label()} of {self._shape}"
            got = tuple(array.shape)
            raise self._misfit(message, ErrorCode.SHAPE_MISMATCH, got, self._shape)

    # -- arithmetic ----------------------------------------------------------------------------

    def update(self) -> None:
        """Subtract the gradient from the data, on the data's newest side.

        Raises:
            ShapeError: The data was never written, or is of integers.
        """
        self._check_float("update")
        match self._data.head:
            case Head.UNINITIALIZED:
                message = f"update of {self._label()}, whose data was never written"
                raise ShapeError(message, code=ErrorCode.BAD_STATE, blob=self.name)
            case Head.HEAD_AT_CPU:
                host = self.mutable_cpu_data()
                host -= self.cpu_diff()
            case _:
                with self.device.backend.device_scope():
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
        self._check_float("norm")
        if memory.cleared:
            return 0.0
        if memory.head is Head.HEAD_AT_CPU:
            host = memory.cpu_data()[: self._count]
            return float(np.sum(np.abs(host)) if power == 1 else np.dot(host, host))
        xp = self.device.backend.xp
        with self.device.backend.device_scope():
            flat = self._view(memory.gpu_data())
            return float(xp.sum(xp.abs(flat)) if power == 1 else xp.sum(flat * flat))

    def _scale(self, memory: SyncedMemory, factor: float) -> None:
        self._check_float("scale")
        if memory.cleared:
            return
        if memory.head is Head.HEAD_AT_CPU:
            host = memory.mutable_cpu_data()[: self._count]
            host *= host.dtype.type(factor)
            return
        with self.device.backend.device_scope():
            view = self._view(memory.mutable_gpu_data())
            view *= factor

    def copy_from(self, source: Blob, copy_diff: bool = False, reshape: bool = False) -> None:
        """Copy the data, or the gradient, of another blob on the current device's side.

        Raises:
            ShapeError: The shapes differ and ``reshape`` is false.
        """
        if source.shape != self._shape:
            if not reshape:
                message = (
                    f"got a blob of shape {source.shape_string} to copy into {self._label()} "
                    f"{self.shape_string}; pass reshape=True to change the shape"
                )
                raise self._misfit(message, ErrorCode.SHAPE_MISMATCH, source.shape, self._shape)
            self.reshape_like(source)
        mine, theirs = (self._diff, source._diff) if copy_diff else (self._data, source._data)
        if mine is theirs:
            return
        discard = self._owns_all(mine)
        if source.device is self.device and not self.device.shares_host:
            with self.device.backend.device_scope():
                value = source._view(theirs.gpu_data())
                self._view(mine.mutable_gpu_data(discard=discard))[...] = value
        else:
            value = theirs.cpu_data()[: self._count]
            mine.mutable_cpu_data(discard=discard)[: self._count] = value

    # -- messages ------------------------------------------------------------------------------

    def shape_equals(self, proto: BlobProto) -> bool:
        """Return whether a message has this shape; legacy axes are compared from the end."""
        if any(proto.HasField(name) for name in LEGACY):
            legacy = tuple(getattr(proto, name) for name in LEGACY)
            return self.num_axes <= 4 and legacy == tuple(
                self.legacy_shape(i) for i in range(-4, 0)
            )
        return tuple(proto.shape.dim) == self._shape

    def from_proto(self, proto: BlobProto, reshape: bool = True) -> None:
        """Copy the shape, the data and, if there is one, the gradient of a message.

        Raises:
            ShapeError: With ``reshape`` false, the shapes differ; or the message has another
                number of values than its shape.
        """
        if reshape:
            self.reshape(stored_shape(proto))
        elif not self.shape_equals(proto):
            got = stored_shape(proto)
            message = (
                f"got a message of shape {shape_string(got)} for {self._label()} "
                f"{self.shape_string}"
            )
            raise self._misfit(message, ErrorCode.SHAPE_MISMATCH, got, self._shape)
        self.set_floats(floats(proto), floats(proto, diff=True))

    def set_floats(self, data: Values, diff: Values) -> None:
        """Copy the data and, unless it is empty, the gradient, in parts. Shapes: (count,).

        Raises:
            ShapeError: The number of values is not the blob's count.
        """
        self._fill(self._data, data, "values")
        if diff.size:
            self._fill(self._diff, diff, "gradient values")

    def to_proto(self, write_diff: bool = False) -> BlobProto:
        """Return a message with the shape, the data and, with ``write_diff``, the gradient."""
        proto = BlobProto()
        if self._shape:  # Caffe writes no shape for a blob without axes
            proto.shape.dim.extend(self._shape)
        set_floats(proto, self.cpu_data().reshape(-1))
        if write_diff:
            set_floats(proto, self.cpu_diff().reshape(-1), diff=True)
        return proto

    def _fill(self, memory: SyncedMemory, values: Values, what: str) -> None:
        if values.size != self._count:
            message = f"got {values.size} {what} for {self._label()} {self.shape_string}"
            raise self._misfit(message, ErrorCode.COUNT_MISMATCH, values.size, self._count)
        host = memory.mutable_cpu_data(discard=self._owns_all(memory))[: self._count]
        for first in range(0, self._count, PART):
            host[first : first + PART] = values[first : first + PART]

    # -- details -------------------------------------------------------------------------------

    def _view(self, flat: Array) -> Array:
        place = self._data.device
        if place is not self.device and not (place.shares_host and self.device.shares_host):
            message = (
                f"{self._label()} of a net on {self.device} is on {place}, for a net that shares "
                "it; move both nets to one device with net.to(...)"
            )
            raise DeviceError(message, code=ErrorCode.CONFLICT, blob=self.name)
        return self.device.backend.view(flat, self._shape, self._count)

    def _misfit(self, message: str, code: ErrorCode, got: object, expected: object) -> ShapeError:
        return ShapeError(message, code=code, blob=self.name, got=got, expected=expected)

    def _check_sharing(self, other: Blob) -> None:
        """Check that both blobs have one count, and are on one device or on the host."""
        if other.count != self._count:
            message = (
                f"{self._label()} {self.shape_string} cannot share the memory of "
                f"{other._label()} {other.shape_string}; the counts must be equal"
            )
            raise self._misfit(message, ErrorCode.COUNT_MISMATCH, other.count, self._count)
        if other.device is not self.device and not (
            other.device.shares_host and self.device.shares_host
        ):
            message = (
                f"{self._label()} on {self.device} cannot share the memory of {other._label()} "
                f"on {other.device}; move both to one device with net.to(...), or use copy_from"
            )
            raise DeviceError(message, code=ErrorCode.CONFLICT, blob=self.name)

    @property
    def lr_mult(self) -> float:
        """Factor of the learning rate of a parameter; 0 freezes the parameter.

        Raises:
            NetError: The blob is no parameter of a net.
        """
        return self._learning_factors().lr_mult

    @lr_mult.setter
    def lr_mult(self, value: float) -> None:
        factors = self._learning_factors()
        factors.lr_mult, factors.frozen = float(value), value == 0

    @property
    def decay_mult(self) -> float:
        """Factor of the weight decay of a parameter; raises as ``lr_mult``."""
        return self._learning_factors().decay_mult

    @decay_mult.setter
    def decay_mult(self, value: float) -> None:
        self._learning_factors().decay_mult = float(value)

    def _learning_factors(self) -> LearningFactors:
        if self.learning_factors is None:
            message = f"{self._label()} is no parameter of a net, and has no learning rate"
            raise NetError(message, code=ErrorCode.UNSUPPORTED, blob=self.name)
        return self.learning_factors

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise attribute_error(type(self), name, guesses.BLOB)

    def __copy__(self) -> NoReturn:
        message = "a blob cannot be copied with copy.copy; use copy_from or share_data"
        raise TypeError(message)

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__copy__()

    def _check_float(self, what: str) -> None:
        if not self.dtype.startswith("float"):
            message = f"{what} of {self._label()} of {self.dtype}; only float blobs support it"
            raise ShapeError(message, code=ErrorCode.DTYPE_MISMATCH, blob=self.name, got=self.dtype)

    def __repr__(self) -> str:
        name = f"{self.name!r} " if self.name else ""
        return f"Blob({name}{self.shape_string} {self.dtype} on {self.device})"

    _repr_html_ = html_of


HOST_KINDS = {1, 3}
"""DLPack's numbers of devices whose memory the host reads: host and pinned memory."""


def is_on(array: Any, device: Device) -> bool:
    """Return True if an array is on this device, and the device has a memory of its own."""
    if device.shares_host or isinstance(array, np.ndarray):
        return False
    return device.backend.holds(array)


def host_array(array: Any, what: str, device: Device) -> np.ndarray:
    """Return an array on the host, of an array, a number or lists; refuse one on another device."""
    if isinstance(array, np.ndarray) or not hasattr(array, "__dlpack_device__"):
        return np.asarray(array)
    if hasattr(array, "detach"):  # of PyTorch: numpy takes none with a gradient or of bfloat16
        array = array.detach()
        array = array.float() if str(array.dtype) == "torch.bfloat16" else array
    why: Exception | None = None
    if int(array.__dlpack_device__()[0]) in HOST_KINDS:
        try:
            return np.asarray(array)
        except (TypeError, RuntimeError) as error:  # mock devices may claim to be the host
            why = error
    library = type(array).__module__.partition(".")[0]
    message = (
        f"got a {library} array on {array.device} for {what} on {device}; pass an array on "
        f"{device}, or a copy on the host, as of numpy{f' ({why})' if why else ''}"
    )
    raise DeviceError(
        message, code=ErrorCode.CONFLICT, device=str(device), got=str(array.device)
    ) from why
