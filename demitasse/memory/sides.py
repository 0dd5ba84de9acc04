"""The two sides of a memory: its array on the host, and its array on a device.

A side knows its array, and what must be waited for before the array is used. Which side is newest,
and when to copy from one to the other, is for ``SyncedMemory`` to decide.
"""

from __future__ import annotations

import math
import weakref

import numpy as np

from demitasse.backends.arrays import Array, Event, PrivateLayout
from demitasse.backends.storage import ARRAYS, Stored, nan_of, narrowed, widen_into
from demitasse.core.device import Device
from demitasse.memory.leases import Lease
from demitasse.memory.transfers import transfers

__all__ = ["DeviceSide", "HostSide", "Traffic"]


class Traffic:
    """What may still be under way in a buffer, for whoever uses it next.

    Memories that share a slot's buffers share its traffic.

    Attributes:
        copy: A copy to a device that may still read from the array on the host.
        last: Where the array on a device was last used, as the backend's ``follow`` returned it.
    """

    __slots__ = ("copy", "last")

    def __init__(self) -> None:
        self.copy: Event | None = None
        self.last: object = None


class HostSide:
    """The array on the host.

    Attributes:
        array: One-dimensional; None until the host side is first used.
        given: Whether the array is somebody else's, who may look at it.
        let_go: Whether there was one that nobody seemed to need.
        traffic: What may still be under way in it.
    """

    __slots__ = ("_lease", "array", "given", "let_go", "traffic")

    def __init__(self, traffic: Traffic) -> None:
        self.array: np.ndarray | None = None
        self.given = self.let_go = False
        self.traffic = traffic
        self._lease: weakref.ref[Lease] | None = None

    def replace(self, array: np.ndarray | None) -> None:
        """Use another array from now on, which no live view shows; None for one made later."""
        self.wait()
        self.array, self._lease, self.given = array, None, array is not None

    @property
    def leased(self) -> bool:
        """Whether somebody holds a live view of the array."""
        return self._lease is not None and self._lease() is not None

    def view(self, host: np.ndarray, memory: object) -> np.ndarray:
        """Return a live, writable view of ``host``, which is our array. Shape: (size,).

        Args:
            host: The array.
            memory: Whose side this is.
        """
        lease = self._lease() if self._lease is not None else None
        if lease is None or lease.host is not host:
            lease = Lease(host, memory)
            self._lease = weakref.ref(lease)
        return np.asarray(lease)

    def pend(self, copy: Event | None) -> None:
        """Note a copy to a device that may still read from the array."""
        self.traffic.copy = copy

    def wait(self) -> None:
        """Wait until no copy reads from the array any more, so that it may be written."""
        if self.traffic.copy is not None:
            self.traffic.copy.synchronize()
            self.traffic.copy = None


class DeviceSide:
    """The array on a device, in C order or in a backend's private layout.

    Attributes:
        array: One-dimensional; None until the device side is first used.
        device: The device that the array is on.
        layout: The private layout that the array is in; None for C order.
        storage: How it keeps numbers: "float" as the host does, or in 16 bits.
        traffic: What may still be under way in it.
    """

    __slots__ = ("array", "device", "layout", "storage", "traffic")

    def __init__(self, device: Device, traffic: Traffic) -> None:
        self.array: Array | None = None
        self.device = device
        self.traffic = traffic
        self.layout: PrivateLayout | None = None
        self.storage: Stored = "float"

    def replace(
        self, array: Array | None, device: Device, layout: PrivateLayout | None = None
    ) -> None:
        """Use another array from now on; None for one made later."""
        self.array, self.device, self.layout = array, device, layout

    def follow(self) -> None:
        """Let what is done with the array now begin after what was done with it before."""
        self.traffic.last = self.device.backend.follow(self.traffic.last)

    def fill(self, value: float) -> None:
        """Set all elements to one number."""
        self.follow()
        with self.device.backend.here():
            narrow = self.storage != "float" and math.isnan(value)
            self.device.backend.fill(self.array, nan_of(self.storage) if narrow else value)

    def copy_to(self, host: np.ndarray) -> None:
        """Write the elements in C order to the beginning of ``host``, and wait for it."""
        self.follow()
        backend = self.device.backend
        if self.layout is not None:
            backend.unpack(self.array, self.layout, host)
            transfers.note(reorders=1)
        elif self.storage == "float":
            backend.download(self.array, host)
            transfers.note(down=host.nbytes)
        else:
            narrow = np.empty(host.size, ARRAYS[self.storage])
            backend.download(self.array, narrow)
            widen_into(narrow, self.storage, host)
            transfers.note(down=narrow.nbytes)

    def copy_from(self, host: np.ndarray) -> Event | None:
        """Start copying ``host``, of our size, into the array, which is in C order.

        Returns:
            What to wait for before ``host`` may be overwritten, or None when it already may.
        """
        if self.storage != "float":
            host = narrowed(host, self.storage)
        event = self.device.backend.upload(host, self.array)
        transfers.note(up=host.nbytes)
        return event
