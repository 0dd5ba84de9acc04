"""SyncedMemory: one piece of data with a host side and a device side, copied only when needed.

A *head* says which side is newest. Whoever reads the stale side pays for one copy. Nothing else in
the engine moves data between host and device, so counting here counts everything.

Source: Caffe, ``src/caffe/syncedmem.cpp``; live views and versions are ours.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any

import numpy as np

from demitasse.backends.base import Array, Event, PrivateLayout
from demitasse.config import settings
from demitasse.device import Device
from demitasse.errors import DeviceError, ShapeError
from demitasse.memory.arena import Lodging
from demitasse.memory.leases import Lease
from demitasse.memory.transfers import transfers

__all__ = ["Head", "SyncedMemory", "transfers"]


class Head(Enum):
    """Which side of a memory is newest."""

    UNINITIALIZED = 0
    HEAD_AT_CPU = 1
    HEAD_AT_GPU = 2
    SYNCED = 3


PRIVATE_HEADS = (Head.HEAD_AT_GPU, Head.SYNCED)
"""Heads at which the device side is up to date."""


_serials = itertools.count()


class SyncedMemory:
    """``size`` elements that exist on the host, on a device, or on both.

    Allocated when first touched, and zero then. Where the device works on the host's arrays, a Step
    may still keep the elements in a layout of its own: that *private* side is then the device side,
    and everybody else reads the host side, which is brought up to date by a reorder.

    Args:
        size: How many elements.
        dtype: "float32", "float64", "int32", ...
        device: Where the device side lives.

    Attributes:
        version: Grows with every write; what is derived from the contents is keyed by it.
        serial: Tells this memory from every other of the process, past ones included.
    """

    __slots__ = (
        "__weakref__",
        "_at",
        "_device_side",
        "_head",
        "_host",
        "_in_flight",
        "_layout",
        "_lease",
        "_lodging",
        "_owns_device",
        "_owns_host",
        "_poison",
        "device",
        "dtype",
        "serial",
        "size",
        "version",
    )

    def __init__(self, size: int, dtype: str, device: Device) -> None:
        self.size, self.dtype, self.device = size, dtype, device
        self.version = 0
        self.serial = next(_serials)
        self._head = Head.UNINITIALIZED
        self._host: np.ndarray | None = None
        self._device_side: Array = None
        self._layout: PrivateLayout | None = None  # of _device_side, when it is a private one
        self._at: Device = device  # the device that _device_side is on
        self._owns_host = self._owns_device = True
        self._in_flight: Event | None = None
        self._lease: weakref.ref[Lease] | None = None
        self._lodging: Lodging | None = None
        self._poison = bool(settings.get("poison")) and dtype.startswith("float")

    # -- what it is ----------------------------------------------------------------------------

    @property
    def head(self) -> Head:
        """Which side is newest."""
        return self._head

    @property
    def nbytes(self) -> int:
        """Size of one side, in bytes."""
        return self.size * np.dtype(self.dtype).itemsize

    @property
    def owns_host(self) -> bool:
        """Whether the host side is ours, not adopted from a caller."""
        return self._owns_host

    @property
    def owns_device(self) -> bool:
        """Whether the device side is ours, not adopted from a caller."""
        return self._owns_device

    @property
    def allocated(self) -> int:
        """Bytes allocated so far on host and device together."""
        host = self.nbytes if self._host is not None else 0
        if self._device_side is None:
            return host
        return host + (self.nbytes if self._layout is None else self._device_side.nbytes)

    @property
    def leased(self) -> bool:
        """Whether a live view of the host side is held by somebody."""
        return self._lease is not None and self._lease() is not None

    # -- reading and writing -------------------------------------------------------------------

    def cpu_data(self) -> np.ndarray:
        """Return the host side, up to date, for reading. Shape: (size,)."""
        self._enter()
        return self._to_cpu()

    def mutable_cpu_data(self, *, discard: bool = False) -> np.ndarray:
        """Return the host side for writing; the device side becomes stale.

        Args:
            discard: Everything will be overwritten, so the old contents need not be copied.
        """
        self._enter()
        host = self._to_cpu(discard=discard)
        self._wait()
        if self._head is not Head.HEAD_AT_CPU:
            self._head = Head.HEAD_AT_CPU
            self._spoil(self._device_side)
        self.version += 1
        return host

    def gpu_data(self) -> Array:
        """Return the device side, up to date, for reading. Shape: (size,)."""
        self._enter()
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
        self._enter()
        side = self._to_gpu(discard=discard)
        if self._head is not Head.HEAD_AT_GPU:
            self._head = Head.HEAD_AT_GPU
            self._spoil(self._host)
        self.version += 1
        return side

    # -- the private side ----------------------------------------------------------------------

    @property
    def layout(self) -> PrivateLayout | None:
        """The layout of the private side, when that side is up to date; otherwise None."""
        return self._layout if self._head in PRIVATE_HEADS else None

    def private_data(self, layout: PrivateLayout) -> Array | None:
        """Return the private side in ``layout``, up to date, for reading. Shape: (layout.size,).

        Returns:
            None when the private side is up to date in another layout: whoever wrote it chose that
            one, and a reader converts it into memory of his own.
        """
        if self._head in PRIVATE_HEADS and self._at is self.device and self._layout is not None:
            return self._device_side if self._layout is layout else None
        host = self._to_cpu()
        side = self._private_side(layout)
        self.device.backend.pack(host, layout, side)
        transfers.note(reorders=1)
        self._head = Head.SYNCED
        return side

    def mutable_private_data(self, layout: PrivateLayout) -> Array:
        """Return the private side in ``layout``, to be overwritten; the host side becomes stale.

        What it holds is kept where it is up to date in this layout, and anything otherwise.
        """
        if self._at is not self.device:
            self._leave_old_device(discard=True)
        side = self._private_side(layout)
        if self._head is not Head.HEAD_AT_GPU:
            self._head = Head.HEAD_AT_GPU
            self._spoil(self._host)
        self.version += 1
        return side

    def convert(self, layout: PrivateLayout, target: Array) -> None:
        """Write the contents to ``target`` in ``layout``; the sides stay as they are.

        Shapes: target (layout.size,).
        """
        backend, here = self.device.backend, self.layout
        if here is not None and here.shape == layout.shape and self._at is self.device:
            backend.repack(self._device_side, here, target, layout)
        else:
            backend.pack(self.cpu_data(), layout, target)
        transfers.note(reorders=1)

    def exchange_private(self, layout: PrivateLayout, side: Array) -> Array | None:
        """Make ``side`` the private side, to be overwritten; return the one it replaces.

        So a Step that runs in place keeps its input without copying it.
        """
        if self._at is not self.device:
            self._leave_old_device(discard=True)
        before, self._device_side = self._device_side, side
        self._layout, self._at, self._owns_device = layout, self.device, True
        self._head = Head.HEAD_AT_GPU
        self._spoil(self._host)
        self.version += 1
        return before

    def _private_side(self, layout: PrivateLayout) -> Array:
        if self._layout is not layout:
            self._device_side, self._layout = self._new_private_side(layout), layout
            self._at, self._owns_device = self.device, True
        return self._device_side

    def clear(self) -> None:
        """Forget the contents: reads as zeros again, without writing them now."""
        self._head = Head.UNINITIALIZED
        self.version += 1
        lease = self._lease() if self._lease is not None else None
        if lease is not None:  # somebody is looking at the host side
            self._wait()
            lease.host[...] = 0
            self._head = Head.HEAD_AT_CPU

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
        self._wait()
        self._host, self._owns_host, self._lease = array, False, None
        self._head = Head.HEAD_AT_CPU
        self._spoil(self._device_side)
        self.version += 1

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
        self._device_side, self._at, self._owns_device = array, self.device, False
        self._head = Head.HEAD_AT_GPU
        self._spoil(self._host)
        self.version += 1

    def async_push(self) -> None:
        """Start copying the host side to the device, so that it is there when it is needed.

        Raises:
            DeviceError: The head is not at the host.
        """
        if self.device.shares_host:
            return
        if self._head is not Head.HEAD_AT_CPU:
            message = f"only data whose head is at the host can be pushed; it is {self._head.name}"
            raise DeviceError(message)
        self._to_gpu()

    # -- moving and sharing --------------------------------------------------------------------

    def to(self, device: Device) -> None:
        """Belong to another device from now on; the data follows when somebody asks for it."""
        self.device = device
        if self._at is not device and self._head is not Head.HEAD_AT_GPU:
            self._drop_device_side()

    # -- live views ----------------------------------------------------------------------------

    def lease(self) -> np.ndarray:
        """Return a live, writable view of the host side. Shape: (size,).

        While the view, or any slice of it, is held, the host side is authoritative between
        passes: what is written into it counts, and what a pass computes appears in it.
        """
        host = self.mutable_cpu_data()
        lease = self._lease() if self._lease is not None else None
        if lease is None or lease.host is not host:
            lease = Lease(host)
            self._lease = weakref.ref(lease)
        return np.asarray(lease)

    # -- buffers of several memories ------------------------------------------------------------

    @property
    def lodging(self) -> Lodging | None:
        """Whose buffers it uses, if not its own."""
        return self._lodging

    def lodge(self, lodging: Lodging | None) -> None:
        """Use the buffers of ``lodging`` from now on, or one's own again; the contents are lost."""
        self._wait()
        self._lodging = lodging
        self._host, self._owns_host, self._lease = None, True, None
        self._device_side, self._layout, self._owns_device = None, None, True
        self._at, self._head = self.device, Head.UNINITIALIZED
        self.version += 1

    def _enter(self) -> None:
        if self._lodging is not None:
            self._lodging.enter()

    # -- around a pass ---------------------------------------------------------------------------

    def before_pass(self) -> None:
        """Take what may have been written through a live view as the newest data."""
        if self.leased and self._head is not Head.UNINITIALIZED and self._lodging is None:
            self.mutable_cpu_data()

    def after_pass(self) -> None:
        """Show in a live view what a pass has computed."""
        if self.leased and self._head is Head.HEAD_AT_GPU and self._lodging is None:
            self._to_cpu()

    # -- the four states -----------------------------------------------------------------------

    def _to_cpu(self, *, discard: bool = False) -> np.ndarray:
        match self._head:
            case Head.UNINITIALIZED:
                fresh = self._host is None and self._lodging is None  # and so zero already
                host = self._host_side()
                if not (discard or fresh):
                    self._wait()
                    host[...] = 0
                self._head = Head.HEAD_AT_CPU
            case Head.HEAD_AT_GPU:
                host = self._host_side()
                if not discard:
                    self._wait()
                    if self._layout is not None:
                        self._at.backend.unpack(self._device_side, self._layout, host)
                        transfers.note(reorders=1)
                    else:
                        self._at.backend.download(self._device_side, host)
                        transfers.note(down=self.nbytes)
                self._head = Head.SYNCED
                if self._at is not self.device:
                    self._drop_device_side()
            case _:
                host = self._host_side()
        return host

    def _to_gpu(self, *, discard: bool = False) -> Array:
        if self._at is not self.device:
            self._leave_old_device(discard=discard)
        match self._head:
            case Head.UNINITIALIZED:
                fresh = self._device_side is None and self._lodging is None
                if self._device_side is None:
                    self._device_side = self._new_device_side()
                if not (discard or fresh):
                    self._device_side[...] = 0
                self._head = Head.HEAD_AT_GPU
            case Head.HEAD_AT_CPU:
                if self._device_side is None:
                    self._device_side = self._new_device_side()
                if not discard:
                    self._wait()
                    self._in_flight = self.device.backend.upload(
                        self._host_side(), self._device_side
                    )
                    transfers.note(up=self.nbytes)
                self._head = Head.SYNCED
            case _:
                pass
        return self._device_side

    def _leave_old_device(self, *, discard: bool) -> None:
        """Bring what is only on the old device home, and let go of that side."""
        if self._head is Head.HEAD_AT_GPU and not discard:
            self._to_cpu()
        self._drop_device_side()

    def _drop_device_side(self) -> None:
        self._wait()
        self._device_side, self._layout, self._owns_device = None, None, True
        if self._head is Head.SYNCED:
            self._head = Head.HEAD_AT_CPU
        elif self._head is Head.HEAD_AT_GPU:
            self._head = Head.UNINITIALIZED
        self._at = self.device

    def _host_side(self) -> np.ndarray:
        if self._host is None:
            make = partial(self.device.backend.empty_host, dtype=self.dtype)
            self._host = self._room("host", self.size, make)
        return self._host

    def _new_device_side(self) -> Array:
        self._owns_device = True
        make = partial(self.device.backend.zeros, dtype=self.dtype)
        return self._room(str(self.device), self.size, make)

    def _new_private_side(self, layout: PrivateLayout) -> Array:
        return self._room("private", layout.size, self.device.backend.empty_private)

    def _room(self, where: str, size: int, make: Callable[[int], Array]) -> Array:
        """Return new memory, or room in the buffer that is shared."""
        if self._lodging is None:
            return make(size)
        return self._lodging.room.lend((where, self.dtype), size, make)

    def _wait(self) -> None:
        """Wait for a copy out of the host side that is still under way."""
        if self._in_flight is not None:
            self._in_flight.synchronize()
            self._in_flight = None

    def _spoil(self, side: Any) -> None:
        """Debugging: make a read of the stale side show."""
        if self._poison and side is not None and self._head is not Head.SYNCED:
            if side is self._host and self.leased:
                return
            self._wait()
            side[...] = float("nan")

    def __repr__(self) -> str:
        return f"SyncedMemory({self.size} {self.dtype} on {self.device}, {self._head.name})"
