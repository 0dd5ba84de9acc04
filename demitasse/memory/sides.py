"""The two sides of a memory: the array on the host, and the array on a device.

A side has an array, and the pending work that must end before the array is used.
``SyncedMemory`` decides which side is newest, and when to copy.
"""

import math
import weakref
from typing import Any, ClassVar

import numpy as np

from demitasse.backends.arrays import Array, ArrayRef, Event, PrivateLayout
from demitasse.backends.storage import ARRAYS, Stored, nan_of, narrowed, widen_into
from demitasse.core.device import Device
from demitasse.memory.transfers import transfers


class StreamOrder:
    """Pending work on a buffer, which the next user of the buffer must wait for.

    Attributes:
        copy: A copy to a device that may still read the array on the host.
        last: The last use of the array on a device, as returned by the backend's ``order_after``.
    """

    __slots__ = ("copy", "last")

    def __init__(self) -> None:
        self.copy: Event | None = None
        self.last: object = None


class LiveView:
    """Owner of a live view of a memory's host side.

    A numpy array made from a LiveView, and every slice or view of that array, keeps it alive. While
    one is alive, every pass reads the values written through it, and updates it afterwards. Without
    one, passes skip both. The view does not keep the memory alive.
    """

    __slots__ = ("__array_interface__", "__weakref__", "host")

    alive: ClassVar[dict[int, weakref.ref[Any]]] = {}
    """The memories of all views. Unlike a set of weak references, a dictionary can be copied while
    other threads add to it."""

    def __init__(self, host: np.ndarray, memory: object) -> None:
        self.host = host
        self.__array_interface__ = host.__array_interface__
        self.alive[id(self)] = weakref.ref(memory)

    def __del__(self) -> None:
        self.alive.pop(id(self), None)


def any_live_view() -> bool:
    """Return True if any memory has a live view."""
    return bool(LiveView.alive)


def viewed_memories() -> list[Any]:
    """Return the memories with live views."""
    found = [memory() for memory in LiveView.alive.copy().values()]
    return [memory for memory in found if memory is not None]


class HostSide:
    """The array on the host, one-dimensional; None until the host side is first used.

    Attributes:
        borrowed: True for an array of a caller, who may read it at any time.
        dropped: True once an array was dropped because nothing seemed to need it.
        layout: None: an array on the host is in C order.
    """

    layout: ClassVar = None

    __slots__ = ("_view", "array", "borrowed", "dropped", "order")

    def __init__(self, order: StreamOrder) -> None:
        self.array: np.ndarray | None = None
        self.borrowed = self.dropped = False
        self.order = order
        self._view: weakref.ref[LiveView] | None = None

    def replace(self, array: np.ndarray | None) -> None:
        """Use another array, without a live view; None for one allocated later."""
        self.wait()
        self.array, self._view, self.borrowed = array, None, array is not None

    @property
    def viewed(self) -> bool:
        """True if the array has a live view."""
        return self._view is not None and self._view() is not None

    def view(self, host: np.ndarray, memory: object) -> np.ndarray:
        """Return a live, writable view of ``host``, the array of this side. Shape: (size,)."""
        view = self._view() if self._view is not None else None
        if view is None or view.host is not host:
            view = LiveView(host, memory)
            self._view = weakref.ref(view)
        return np.asarray(view)

    def wait(self) -> None:
        """Wait until no copy reads the array, so that the array may be written."""
        if self.order.copy is not None:
            self.order.copy.synchronize()
            self.order.copy = None


class DeviceSide:
    """The array on a device, one-dimensional; None until the device side is first used.

    Attributes:
        layout: The private layout of the array; None for C order.
        storage: Storage of numbers: "float" as on the host, or 16 bits.
        views: Arrays by private layout, all of the buffer of the first.
    """

    __slots__ = ("array", "device", "layout", "order", "storage", "views")

    def __init__(self, device: Device, order: StreamOrder) -> None:
        self.array: Array | None = None
        self.device = device
        self.order = order
        self.layout: PrivateLayout | None = None
        self.storage: Stored = "float"
        self.views: dict[PrivateLayout, Array] = {}

    def replace(
        self, array: Array | None, device: Device, layout: PrivateLayout | None = None
    ) -> None:
        """Use another array; None for one allocated later."""
        self.array, self.device, self.layout = array, device, layout
        self.views = {} if layout is None else {layout: array}

    @property
    def buffer(self) -> Array:
        """The array that all private arrays are parts of; None without a private array."""
        return next(iter(self.views.values()), None)

    def view(self, layout: PrivateLayout, *, shared: bool = False) -> Array | None:
        """Return the array of a layout of another shape, in the present buffer, or None.

        A Step may read one layout of a shape while it writes another, so these never share a
        buffer. Padding must be zero, as in a new array. All layouts share the array of a slot
        (``shared``).
        """
        if shared:
            return self.views.get(layout)
        if self.layout is None or self.layout.shape == layout.shape:
            return None
        buffer = self.buffer
        fits = buffer is not None and math.prod(layout.shape) == layout.size <= buffer.shape[0]
        if layout not in self.views and fits:
            self.views[layout] = buffer[: layout.size]
        return self.views.get(layout)

    def use(self, layout: PrivateLayout) -> None:
        """Use the array that ``view`` has returned for a layout."""
        self.array, self.layout = self.views[layout], layout

    def ref(self) -> ArrayRef:
        """Return a reference to an array that cannot be written. Shape: (size,)."""
        array: Array = self.array
        return ArrayRef(self.device.backend, self, (array.shape[0],))

    def follow(self) -> None:
        """Order the next work on the array after the earlier work."""
        self.order.last = self.device.backend.order_after(self.order.last)

    def fill(self, value: float) -> None:
        """Set all elements to one number."""
        self.follow()
        if not self.device.backend.mutable:
            self.ref()[...] = value
            return
        with self.device.backend.device_scope():
            narrow = self.storage != "float" and math.isnan(value)
            self.device.backend.fill(self.array, nan_of(self.storage) if narrow else value)

    def reordered(self, array: Array, layout: PrivateLayout | None) -> Array:
        """Return elements of an array in the layout of this side in another layout.

        The result is a new array; elements behind those of the layouts are undefined.
        """
        transfers.note(reorders=1)
        return self.device.backend.reordered(array, self.layout, layout)

    def copy_to(self, host: np.ndarray) -> None:
        """Write the elements in C order to the beginning of ``host``; wait for the copy."""
        self.follow()
        backend = self.device.backend
        if self.layout is not None and self.device.shares_host:
            backend.unpack(self.array, self.layout, host)
            transfers.note(reorders=1)
            return
        array = self.array if self.layout is None else self.reordered(self.array, None)
        if self.storage == "float":
            backend.download(array, host)
            transfers.note(down=host.nbytes)
        else:
            narrow = np.empty(host.size, ARRAYS[self.storage])
            backend.download(array, narrow)
            widen_into(narrow, self.storage, host)
            transfers.note(down=narrow.nbytes)

    def copy_from(self, host: np.ndarray) -> Event | None:
        """Start a copy of ``host`` to the array, in C order; return the event of its end."""
        if self.storage != "float":
            host = narrowed(host, self.storage)
        backend, event, self.layout = self.device.backend, None, None
        if backend.mutable:
            event = backend.upload(host, self.array)
        else:
            self.array = backend.asarray(host)
        transfers.note(up=host.nbytes)
        return event
