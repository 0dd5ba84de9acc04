"""SyncedMemory: one piece of data with a host side and a device side, copied only when needed.

A *head* says which side is newest. Whoever reads the stale side pays for one copy. Nothing else in
the engine moves data between host and device, so counting here counts everything.

Source: Caffe, ``src/caffe/syncedmem.cpp``; live views and versions are ours.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from enum import Enum
from functools import partial

import numpy as np

from demitasse.backends.arrays import Array, PrivateLayout
from demitasse.capacity import Share, bytes_text, ledger
from demitasse.capacity.ledger import HOST
from demitasse.config import settings
from demitasse.device import Device
from demitasse.errors import DeviceError, OutOfMemoryError, ShapeError
from demitasse.memory.arena import Assignment
from demitasse.memory.guard import watching
from demitasse.memory.sides import DeviceSide, HostSide, Traffic
from demitasse.memory.transfers import transfers
from demitasse.shortage import placed

__all__ = ["DEVICE_HEADS", "Head", "SyncedMemory"]


class Head(Enum):
    """Which side of a memory is newest."""

    UNINITIALIZED = 0
    HEAD_AT_CPU = 1
    HEAD_AT_GPU = 2
    SYNCED = 3


DEVICE_HEADS = (Head.HEAD_AT_GPU, Head.SYNCED)
"""Heads at which the device side is up to date."""


_serials = itertools.count()


class SyncedMemory:
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

    Attributes:
        version: Grows with every write; what is derived from the contents is keyed by it.
        serial: Tells this memory from every other of the process, past ones included.
    """

    __slots__ = (
        "__weakref__",
        "_assignment",
        "_device_side",
        "_head",
        "_host_side",
        "_initial",
        "_poison",
        "called",
        "device",
        "dtype",
        "serial",
        "size",
        "version",
    )

    def __init__(self, size: int, dtype: str, device: Device, called: str = "an array") -> None:
        self.size, self.dtype, self.device, self.called = size, dtype, device, called
        self.version = 0
        self.serial = next(_serials)
        self._head = Head.UNINITIALIZED
        traffic = Traffic()
        self._host_side = HostSide(traffic)
        self._device_side = DeviceSide(device, traffic)
        self._assignment: Assignment | None = None
        self._initial: Callable[[np.ndarray], None] | None = None
        self._poison = bool(settings.get_often("poison")) and dtype.startswith("float")

    # -- what it is ----------------------------------------------------------------------------

    @property
    def head(self) -> Head:
        """Which side is newest; the host's before ``begin_with`` has done its work."""
        return Head.HEAD_AT_CPU if self.deferred else self._head

    @property
    def cleared(self) -> bool:
        """Whether it holds nothing: it reads as zeros, and may be overwritten without reading."""
        return self.head is Head.UNINITIALIZED

    @property
    def deferred(self) -> bool:
        """Whether its first contents are still to be made."""
        return self._initial is not None

    @property
    def nbytes(self) -> int:
        """Size of one side, in bytes."""
        return self.size * np.dtype(self.dtype).itemsize

    @property
    def allocated(self) -> int:
        """Bytes allocated so far on host and device together."""
        host = 0 if self._host_side.array is None else self.nbytes
        there = self._device_side
        if there.array is None:
            return host
        return host + (self.nbytes if there.layout is None else int(there.array.nbytes))

    def shares(self) -> list[Share]:
        """Return the arrays that it holds now."""
        if self._assignment is not None:
            return self._assignment.slot.shares()
        found, host, there = [], self._host_side.array, self._device_side
        if host is not None:
            found.append(Share(HOST, id(host), self.nbytes))
        if there.array is not None and there.layout is not None:
            found.append(Share(HOST, id(there.array), int(there.array.nbytes)))
        elif there.array is not None:
            found.append(Share(str(there.device), id(there.array), self.nbytes))
        return found

    @property
    def leased(self) -> bool:
        """Whether a live view of the host side is held by somebody."""
        return self._host_side.leased

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
        return self._to_gpu()

    def mutable_gpu_data(self, *, discard: bool = False) -> Array:
        """Return the device side for writing; the host side becomes stale.

        Args:
            discard: Everything will be overwritten, so the old contents need not be copied.
        """
        if self.device.shares_host:
            return self.mutable_cpu_data(discard=discard)
        self._check_open()
        elsewhere = self._head is not Head.HEAD_AT_GPU
        side = self._to_gpu(discard=discard)
        if elsewhere:
            self._newest_at_device()
        self.version += 1
        return side

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
        self.device.backend.pack(host, layout, side)
        transfers.note(reorders=1)
        self._head = Head.SYNCED
        if alone:
            self._let_go_of_host()
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

    def _private_array(self, layout: PrivateLayout) -> Array:
        side = self._device_side
        if side.layout is not layout:
            make = self.device.backend.empty_private
            array = self._allocate("private", layout.size, make)
            self._distrust_device_side()
            side.replace(array, self.device, layout)
        return side.array

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
            raise ShapeError(message)
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
            raise ShapeError(message)
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
            raise DeviceError(message)
        self._to_gpu()

    # -- moving --------------------------------------------------------------------------------

    def to(self, device: Device) -> None:
        """Move to another device; the contents are copied when they are next used."""
        self.device = device
        if self._device_side.device is not device and self._head is not Head.HEAD_AT_GPU:
            self._drop_device_side()

    # -- live views ----------------------------------------------------------------------------

    def lease(self) -> np.ndarray:
        """Return a live, writable view of the host side. Shape: (size,).

        While the view, or any slice of it, is held, the host side is authoritative between
        passes: what is written into it counts, and what a pass computes appears in it.
        """
        return self._host_side.view(self.mutable_cpu_data())

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

    def _check_open(self) -> None:
        if self._assignment is not None:
            self._assignment.check_open()

    # -- around a pass -------------------------------------------------------------------------

    def before_pass(self) -> None:
        """Make the host side newest if it has live views, for they may have been written to."""
        if self.leased and not self.cleared and self._assignment is None:
            self.mutable_cpu_data()

    def after_pass(self) -> None:
        """Bring the host side up to date if it has live views, to show what a pass computed."""
        if self.leased and self._head is Head.HEAD_AT_GPU and self._assignment is None:
            self._to_cpu()

    # -- the four states -----------------------------------------------------------------------

    def _to_cpu(self, *, discard: bool = False) -> np.ndarray:
        match self._head:
            case Head.UNINITIALIZED:
                fresh = self._host_side.array is None and self._assignment is None  # so it is zero
                host = self._host_array()
                if self._initial is not None and not discard:
                    self._initial(host)
                elif not (discard or fresh):
                    self._host_side.wait()
                    host[...] = 0
                self._head, self._initial = Head.HEAD_AT_CPU, None
            case Head.HEAD_AT_GPU:
                host = self._host_array()
                if not discard:
                    if self._device_side.layout is None and (guard := watching()) is not None:
                        guard.downloads(self)
                    self._host_side.wait()
                    self._device_side.copy_to(host)
                self._head = Head.HEAD_AT_CPU if discard else Head.SYNCED
                if self._device_side.device is not self.device:
                    self._drop_device_side()
            case _:
                host = self._host_array()
        return host

    def _to_gpu(self, *, discard: bool = False) -> Array:
        if self._device_side.device is not self.device:
            self._leave_old_device(discard=discard)
        if self._initial is not None and not discard:
            self._to_cpu()
        self._device_side.follow()
        match self._head:
            case Head.UNINITIALIZED:
                fresh = self._device_side.array is None and self._assignment is None
                side = self._device_array()
                if not (discard or fresh):
                    self._device_side.fill(0)
                self._head, self._initial = Head.HEAD_AT_GPU, None
            case Head.HEAD_AT_CPU:
                side = self._device_array()
                if not discard:
                    if (guard := watching()) is not None:
                        guard.uploads(self)
                    self._host_side.wait()
                    self._host_side.pend(self._device_side.copy_from(self._host_array()))
                self._head = Head.HEAD_AT_GPU if discard else Head.SYNCED
            case _:
                side = self._device_side.array
        return side

    # While debugging, the side that becomes stale is filled with NaN, so that reading it shows.

    def _newest_at_host(self) -> None:
        self._head, self._initial = Head.HEAD_AT_CPU, None
        if not self.device.shares_host and (guard := watching()) is not None:
            guard.wrote(self)
        if self._poison and self._device_side.array is not None:
            self._host_side.wait()
            self._device_side.fill(math.nan)

    def _newest_at_device(self) -> None:
        self._head, self._initial = Head.HEAD_AT_GPU, None
        host = self._host_side.array
        if self._poison and not self.leased and host is not None:
            self._host_side.wait()
            host[...] = math.nan

    def _distrust_device_side(self) -> None:
        """Take the host side for newest while the device side is replaced: that may be cut short.

        What is on the device alone is about to be overwritten.
        """
        if self._head is Head.SYNCED:
            self._head = Head.HEAD_AT_CPU

    def _let_go_of_host(self) -> None:
        """Keep the device side alone, which is up to date."""
        host = self._host_side
        if self.leased or host.given or host.let_go or self._assignment is not None:
            return
        self._head, host.let_go = Head.HEAD_AT_GPU, True
        host.replace(None)

    # -- arrays --------------------------------------------------------------------------------

    def _leave_old_device(self, *, discard: bool) -> None:
        """Bring what is only on the old device home, and let go of that side."""
        if self._head is Head.HEAD_AT_GPU and not discard:
            self._to_cpu()
        self._drop_device_side()

    def _drop_device_side(self) -> None:
        self._host_side.wait()
        self._device_side.replace(None, self.device)
        if self._head is Head.SYNCED:
            self._head = Head.HEAD_AT_CPU
        elif self._head is Head.HEAD_AT_GPU:
            self._head = Head.UNINITIALIZED

    def _host_array(self) -> np.ndarray:
        side = self._host_side
        if side.array is None:
            make = partial(self.device.backend.empty_host, dtype=self.dtype)
            side.array = self._allocate(HOST, self.size, make)
        return side.array

    def _device_array(self) -> Array:
        side = self._device_side
        if side.array is None:
            make = partial(self.device.backend.zeros, dtype=self.dtype)
            side.array = self._allocate(str(self.device), self.size, make)
        return side.array

    def _allocate(self, where: str, size: int, make: Callable[[int], Array]) -> Array:
        """Return a new array, or the part of the slot's that is ours for now.

        Raises:
            OutOfMemoryError: There is no room, or the setting ``memory_limit`` leaves none.
        """

        def within_limit(size: int) -> Array:
            self._ask_for_room(where, size)
            try:
                return make(size)
            except (OutOfMemoryError, MemoryError, OSError) as error:
                fault = placed(error, self.called)
                raise fault from fault.__cause__

        ledger.note(self)
        if self._assignment is None:
            return within_limit(size)
        return self._assignment.slot.lend((where, self.dtype), size, within_limit)

    def _ask_for_room(self, where: str, size: int) -> None:
        """See that so many elements more are within the limit of our device.

        Host sides of a device with memory of its own are not: its limit is not the host's.
        """
        limit = settings.get_often("memory_limit")
        if not limit or (where == HOST and not self.device.shares_host):
            ledger.unasked()
            return
        place = HOST if self.device.shares_host else str(self.device)
        nbytes = size * np.dtype(self.dtype).itemsize
        if not ledger.has_room(place, nbytes, limit):
            message = (
                f"{self.called} needs {bytes_text(nbytes)} on {self.device}, where nets hold "
                f"{bytes_text(ledger.used(place))} and may hold {bytes_text(limit)} (memory_limit, "
                f"{settings.where('memory_limit')}); make the batch smaller, let go of other nets, "
                "or raise the limit"
            )
            raise OutOfMemoryError(message)

    def __repr__(self) -> str:
        return f"SyncedMemory({self.size} {self.dtype} on {self.device}, {self._head.name})"
