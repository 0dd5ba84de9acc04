"""SyncedMemory: one piece of data with a host side and a device side, copied only when needed.

A *head* says which side is newest. Whoever reads the stale side pays for one copy. Nothing else in
the engine moves data between host and device, so counting here counts everything.

Source: Caffe, ``src/caffe/syncedmem.cpp``; live views and versions are ours.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from demitasse.backends.arrays import Array, PrivateLayout
from demitasse.backends.storage import Stored
from demitasse.core.device import Device
from demitasse.core.memory_info import ledger
from demitasse.core.threads import Uninterrupted
from demitasse.errors import DeviceError, ErrorCode, ShapeError
from demitasse.memory.arena import Assignment
from demitasse.memory.sides import Traffic
from demitasse.memory.transfers import transfers
from demitasse.memory.two_sides import DEVICE_HEADS, Head, TwoSides

__all__ = ["DEVICE_HEADS", "Head", "SyncedMemory"]


class SyncedMemory(TwoSides):
    """``size`` elements that exist on the host, on a device, or on both.

    Allocated when first touched, and zero then, or what ``begin_with`` says. Where the device works
    on the host's arrays, a Step may still keep the elements in a layout of its own. This *private*
    side is then the device side; all other code reads the host side, which is brought up to date by
    a reorder.

    Args:
        size: How many elements.
        dtype: "float32", "float64", "int32", ...
        device: Where the device side lives.
        called: What it is called in messages.
    """

    __slots__ = ()

    # -- reading and writing -------------------------------------------------------------------

    def cpu_data(self) -> np.ndarray:
        """Return the host side, up to date, for reading. Shape: (size,)."""
        self._check_open()
        return self._to_cpu()

    def mutable_cpu_data(self, *, discard: bool = False) -> np.ndarray:
        """Return the host side for writing; the device side becomes stale.

        Args:
            discard: Everything will be overwritten, so the old contents need not be copied.
        """
        self._check_open()
        elsewhere = self._head is not Head.HEAD_AT_CPU
        host = self._to_cpu(discard=discard)
        self._host_side.wait()
        if elsewhere:
            self._newest_at_host()
        self.version += 1
        return host

    def gpu_data(self) -> Array:
        """Return the device side, up to date, for reading. Shape: (size,)."""
        self._check_open()
        if self.device.shares_host:
            return self._to_cpu()
        side = self._to_gpu()
        if self.storage == "float":
            return side
        return self.device.backend.widen(side, self.storage)

    def mutable_gpu_data(self, *, discard: bool = False) -> Array:
        """Return the device side for writing; the host side becomes stale.

        Args:
            discard: Everything will be overwritten, so the old contents need not be copied.
        """
        if self.device.shares_host:
            return self.mutable_cpu_data(discard=discard)
        self._check_open()
        self.keep_as("float", discard=discard)
        return self._written_at_device(discard=discard)

    def _written_at_device(self, *, discard: bool) -> Array:
        elsewhere = self._head is not Head.HEAD_AT_GPU
        side = self._to_gpu(discard=discard)
        if elsewhere:
            self._newest_at_device()
        self.version += 1
        return side

    # -- values in 16 bits ---------------------------------------------------------------------

    def keep_as(self, storage: Stored, *, discard: bool = False) -> None:
        """Keep numbers on the device like that from now on.

        Args:
            storage: "float" for as on the host, "half" or "bfloat16" for 16 bits, rounded.
            discard: Everything will be overwritten, so the contents need not be converted.
        """
        side = self._device_side
        if storage == side.storage:
            return
        if self._head is Head.HEAD_AT_GPU and not discard:
            self._to_cpu()
        self._drop_device_side()
        side.storage = storage

    def narrow_data(self, storage: Stored) -> Array:
        """Return the contents in 16 bits on the device, for reading. Shape: (size,)."""
        self._check_open()
        side = self._to_gpu()
        return side if self.storage == storage else self.device.backend.narrow(side, storage)

    def mutable_narrow_data(self, storage: Stored) -> Array:
        """Return the device side, kept in 16 bits, to be overwritten. Shape: (size,)."""
        self._check_open()
        self.keep_as(storage, discard=True)
        return self._written_at_device(discard=True)

    def overwrite(self, array: Array) -> None:
        """Write values to the beginning of the device side, which is kept in 16 bits.

        Shapes: array any; as many elements as we have, or fewer.
        """
        self._check_open()
        self.device.backend.narrow(array, self.storage, self._written_at_device(discard=True))

    # -- the private side ----------------------------------------------------------------------

    @property
    def layout(self) -> PrivateLayout | None:
        """The layout of the private side, when that side is up to date; otherwise None."""
        return self._device_side.layout if self._head in DEVICE_HEADS else None

    def private_data(self, layout: PrivateLayout, *, alone: bool = False) -> Array | None:
        """Return the private side in ``layout``, up to date, for reading. Shape: (layout.size,).

        Args:
            layout: The layout.
            alone: Let go of a host side that is copied here, unless others look at it. Whoever
                reads it later has it made again, and it stays then.

        Returns:
            None when the private side is up to date in another layout; ``convert`` then gives the
            contents in this one.
        """
        here = self.layout
        if here is not None and self._device_side.device is self.device:
            return self._device_side.array if here is layout else None
        host = self._to_cpu()
        side = self._private_array(layout)
        if alone and self._may_let_go_of_host():
            with Uninterrupted():
                self.device.backend.pack_away(host, layout, side)
                self._let_go_of_host()
        else:
            self.device.backend.pack(host, layout, side)
            self._head = Head.SYNCED
        transfers.note(reorders=1)
        return side

    def mutable_private_data(self, layout: PrivateLayout) -> Array:
        """Return the private side in ``layout``, for writing; the host side becomes stale.

        Its contents are kept when the private side is up to date in this layout, and undefined
        otherwise.
        """
        if self._device_side.device is not self.device:
            self._leave_old_device(discard=True)
        side = self._private_array(layout)
        if self._head is not Head.HEAD_AT_GPU:
            self._newest_at_device()
        self.version += 1
        return side

    def convert(self, layout: PrivateLayout, target: Array) -> None:
        """Write the contents to ``target`` in ``layout``; the sides stay as they are.

        Shapes: target (layout.size,).
        """
        backend, here, side = self.device.backend, self.layout, self._device_side
        if here is not None and here.shape == layout.shape and side.device is self.device:
            backend.repack(side.array, here, target, layout)
        else:
            backend.pack(self.cpu_data(), layout, target)
        transfers.note(reorders=1)

    def exchange_private(self, layout: PrivateLayout, side: Array) -> Array | None:
        """Make ``side`` the private side, to be overwritten; return the one it replaces.

        So a Step that runs in place keeps its input without copying it.
        """
        if self._device_side.device is not self.device:
            self._leave_old_device(discard=True)
        before = self._device_side.array
        self._distrust_device_side()
        self._device_side.replace(side, self.device, layout)
        self._newest_at_device()
        self.version += 1
        return before

    # -- beginning and forgetting --------------------------------------------------------------

    def begin_with(self, write: Callable[[np.ndarray], None]) -> None:
        """Let a function write the contents when they are first read, unless others come before.

        Args:
            write: Gets the host side, shape (size,), and overwrites all of it.
        """
        self.clear()
        self._initial = write

    def clear(self) -> None:
        """Forget the contents: reads as zeros again, without writing them now."""
        self._head, self._initial = Head.UNINITIALIZED, None
        self.version += 1
        if self.leased:  # somebody is looking at the host side
            self._host_side.wait()
            self._host_array()[...] = 0
            self._head = Head.HEAD_AT_CPU

    # -- recorded work -------------------------------------------------------------------------

    @property
    def device_array(self) -> Array | None:
        """The array on the device as it is, or None where there is none. Shape: (size,)."""
        side = self._device_side
        return side.array if side.device is self.device else None

    def used(self, where: object) -> None:
        """Let recorded work begin after what was done with the array on the device before.

        Args:
            where: The work is queued now, as the backend's ``follow`` returned it.
        """
        traffic = self._device_side.traffic
        if traffic.last is not where:
            self.device.backend.follow(traffic.last)
            traffic.last = where

    def written(self, head: Head) -> None:
        """Take note that recorded work has written the device side; ``head`` is newest then."""
        self._head, self._initial = head, None
        self.version += 1

    # -- adopting ------------------------------------------------------------------------------

    def set_cpu_data(self, array: np.ndarray) -> None:
        """Make ``array`` the host side, without copying; the head moves there.

        Raises:
            ShapeError: It is not one-dimensional, contiguous, of our size and dtype.
        """
        if array.shape != (self.size,) or array.dtype != self.dtype or not array.flags.c_contiguous:
            message = (
                f"cannot adopt a {array.dtype} array of shape {array.shape} as {self.size} "
                f"contiguous {self.dtype} elements"
            )
            raise ShapeError(
                message, code=ErrorCode.INCOMPATIBLE, got=tuple(array.shape), expected=(self.size,)
            )
        if self._head is Head.SYNCED:  # until the host side is the new one
            self._head = Head.HEAD_AT_GPU
        self._host_side.replace(array)
        self._newest_at_host()
        self.version += 1
        ledger.adopted(self)

    def set_gpu_data(self, array: Array) -> None:
        """Make a one-dimensional device ``array`` the device side; the head moves there.

        Raises:
            ShapeError: It has another size.
        """
        if tuple(array.shape) != (self.size,):
            message = f"cannot adopt an array of shape {tuple(array.shape)} as {self.size} elements"
            raise ShapeError(
                message,
                code=ErrorCode.SHAPE_MISMATCH,
                got=tuple(array.shape),
                expected=(self.size,),
            )
        if self.device.shares_host:
            self.set_cpu_data(array)
            return
        self._distrust_device_side()
        self._device_side.replace(array, self.device)
        self._newest_at_device()
        self.version += 1
        ledger.adopted(self)

    def async_push(self) -> None:
        """Start copying the host side to the device, so that it is there when it is needed.

        Raises:
            DeviceError: The head is not at the host.
        """
        if self.device.shares_host:
            return
        if self.head is not Head.HEAD_AT_CPU:
            message = f"only data whose head is at the host can be pushed; it is {self._head.name}"
            raise DeviceError(message, code=ErrorCode.BAD_STATE, head=self._head.name)
        self._to_gpu()

    # -- moving --------------------------------------------------------------------------------

    def to(self, device: Device) -> None:
        """Move to another device; the contents are copied when they are next used."""
        if device is not self.device:
            self.keep_as("float")
        self.device = device
        if self._device_side.device is not device and self._head is not Head.HEAD_AT_GPU:
            self._drop_device_side()

    # -- live views ----------------------------------------------------------------------------

    def lease(self) -> np.ndarray:
        """Return a live, writable view of the host side. Shape: (size,).

        While the view, or any slice of it, is held, the host side is authoritative between
        passes: what is written into it counts, and what a pass computes appears in it.
        """
        return self._host_side.view(self.mutable_cpu_data(), self)

    # -- buffers that several memories share ---------------------------------------------------

    @property
    def assignment(self) -> Assignment | None:
        """The slot of an arena whose buffers it uses; None for its own."""
        return self._assignment

    def assign(self, assignment: Assignment | None) -> None:
        """Use the buffers of a slot from now on, or None for its own; the contents are lost."""
        self._assignment = assignment
        self._host_side.replace(None)
        self._device_side.replace(None, self.device)
        traffic = Traffic() if assignment is None else assignment.slot.traffic
        self._host_side.traffic = self._device_side.traffic = traffic
        self._head, self._initial = Head.UNINITIALIZED, None
        self.version += 1

    # -- around a pass -------------------------------------------------------------------------

    def before_pass(self) -> None:
        """Make the host side newest if it has live views, for they may have been written to."""
        if self.leased and not self.cleared and self._assignment is None:
            self.mutable_cpu_data()

    def after_pass(self) -> None:
        """Bring the host side up to date if it has live views, to show what a pass computed."""
        if self.leased and self._head is Head.HEAD_AT_GPU and self._assignment is None:
            self._to_cpu()

    def __repr__(self) -> str:
        return f"SyncedMemory({self.size} {self.dtype} on {self.device}, {self._head.name})"
