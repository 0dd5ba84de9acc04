"""The memories of a blob: data and gradient of one shape, which other blobs may share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import numpy as np

from demitasse.backends.arrays import Array
from demitasse.blob.changes import Changes
from demitasse.core.axes import Axes, checked_shape, flat_list
from demitasse.core.device import Device, current_device
from demitasse.errors import DeviceError, ErrorCode, ShapeError
from demitasse.io.proto import BlobShape
from demitasse.memory import Head, SyncedMemory

__all__ = ["Storage"]


class Storage(Axes):
    """Two memories of one shape; made with the arguments of ``Blob``."""

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
        self._told: tuple[Changes, ...] = ()
        self._data, self._diff = self._new_memories(self._count)

    def _new_memories(self, count: int) -> tuple[SyncedMemory, SyncedMemory]:
        """Return memories for data and gradient which no other blob shares."""
        called = self._called()
        return (
            SyncedMemory(count, self.dtype, self.device, called),
            SyncedMemory(count, self.dtype, self.device, f"the gradient of {called}"),
        )

    def tell(self, changes: Changes) -> None:
        """Note changes of shape and memory there from now on; a blob may be of several nets."""
        if changes not in self._told:
            self._told = (*self._told, changes)

    def _note(self) -> None:
        """Note a change, before it is made: one that is interrupted must not stay unknown."""
        for changes in self._told:
            changes.note()

    # -- shape ---------------------------------------------------------------------------------

    def reshape(self, *shape: int | Iterable[int] | BlobShape) -> None:
        """Change the shape; memory is renewed only when it is too small, and never shrinks.

        Args:
            shape: Integers, one tuple or list, or one BlobShape.

        Raises:
            ShapeError: An axis is negative, or there are more than 32.
        """
        if len(shape) == 1 and type(shape[0]) is tuple and shape[0] == self._shape:
            return  # every pass asks for the shape that is there
        new = checked_shape(_dims(shape))
        if new == self._shape:
            return
        count, data, diff = math.prod(new), self._data, self._diff
        if count > min(data.size, diff.size):
            # both are renewed, as in Caffe, so whatever was shared no longer is
            data, diff = self._new_memories(count)
        self._note()
        # in one statement, so that no interrupt leaves a shape without the memory for it
        self._shape, self._count, self._data, self._diff = new, count, data, diff

    def reshape_like(self, other: Axes) -> None:
        """Take the shape of another blob."""
        self.reshape(other.shape)

    # -- memory --------------------------------------------------------------------------------

    @property
    def data_memory(self) -> SyncedMemory:
        """The memory of the data, perhaps shared with other blobs."""
        return self._data

    @property
    def diff_memory(self) -> SyncedMemory:
        """The memory of the gradient, perhaps shared with other blobs."""
        return self._diff

    def share_data(self, other: Storage) -> None:
        """Hold the same data memory as ``other``, which must have the same count.

        Raises:
            ShapeError: It has another count.
            DeviceError: It is on a device that does not reach our memory.
        """
        self._need_same_count(other)
        self._need_reach(other)
        if self._data is not other._data:
            self._note()
            self._data = other._data

    def share_diff(self, other: Storage) -> None:
        """Hold the same gradient memory as ``other``; raises what ``share_data`` does."""
        self._need_same_count(other)
        self._need_reach(other)
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
            raise ShapeError(
                message,
                code=ErrorCode.COUNT_MISMATCH,
                blob=self.name,
                got=tuple(array.shape),
                expected=self._shape,
            )
        if self._data.size != self._count:  # both sides of both memories are renewed, as in Caffe
            data, diff = self._new_memories(self._count)
            self._note()
            self._data, self._diff = data, diff
        if side is Head.HEAD_AT_CPU:
            self._data.set_cpu_data(array.reshape(-1))
        else:
            self._data.set_gpu_data(self.device.backend.xp.reshape(array, (-1,)))

    # -- details -------------------------------------------------------------------------------

    def _view(self, flat: Array) -> Array:
        return self.device.backend.view(flat, self._shape, self._count)

    def _need_same_count(self, other: Storage) -> None:
        if other.count != self._count:
            message = (
                f"{self._called()} {self.shape_string} cannot share the memory of "
                f"{other._called()} {other.shape_string}"
            )
            raise ShapeError(
                message,
                code=ErrorCode.COUNT_MISMATCH,
                blob=self.name,
                got=other.count,
                expected=self._count,
            )

    def _need_reach(self, other: Storage) -> None:
        """See that the other memory may be used where ours is: on one device, or the host."""
        if other.device is not self.device and not (
            other.device.shares_host and self.device.shares_host
        ):
            message = (
                f"{self._called()} on {self.device} cannot share the memory of {other._called()} "
                f"on {other.device}; bring both to one device with net.to(...), or copy with "
                "copy_from"
            )
            raise DeviceError(message, code=ErrorCode.CONFLICT, blob=self.name)

    def __copy__(self) -> NoReturn:
        message = "a blob is not copied by assignment; use copy_from or share_data"
        raise TypeError(message)

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__copy__()


def _dims(given: tuple[Any, ...]) -> list[int]:
    if len(given) == 1 and isinstance(given[0], BlobShape):
        return list(given[0].dim)
    return flat_list(given)
