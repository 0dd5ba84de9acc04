"""SyncedMemory: one piece of data with a host side and a device side, copied only when needed.

A *head* records which side is newest; a read of the stale side costs one copy. Nothing else in the
engine copies between host and device, so ``transfers`` counts every copy.

Source: Caffe, ``src/caffe/syncedmem.cpp``; live views and versions are additions.
"""

import itertools
import math
from collections.abc import Callable
from enum import Enum
from functools import partial

import numpy as np

from demitasse.backends.arrays import Array, PrivateLayout
from demitasse.backends.storage import ARRAYS, Stored
from demitasse.core.config import settings
from demitasse.core.device import Device
from demitasse.core.memory_info import HOST, Share, ledger
from demitasse.core.threads import Uninterrupted
from demitasse.errors import DeviceError, ErrorCode, ShapeError
from demitasse.memory.arena import Assignment, allocate
from demitasse.memory.sides import DeviceSide, HostSide, StreamOrder
from demitasse.memory.transfers import current_guard, transfers


class Head(Enum):
    """The newest side of a memory."""

    UNINITIALIZED = 0
    HEAD_AT_CPU = 1
    HEAD_AT_GPU = 2
    SYNCED = 3


DEVICE_HEADS = (Head.HEAD_AT_GPU, Head.SYNCED)  # heads at which the device side is up to date


class Watch:
    """Holder of the guard of the last replay; None since a memory of the watch has changed."""

    __slots__ = ("guard",)

    def __init__(self) -> None:
        self.guard: object = None


UNWATCHED = Watch()  # the watch of memories that no recording uses

_serials = itertools.count()


class SyncedMemory:
    """``size`` elements that exist on the host, on a device, or on both.

    A side is allocated when it is first used, with zeros or the contents of ``lazy_init``. A Step
    may store the elements in a layout of its own, on the device side, which is then *private*.
    Other code reads a converted copy: on a device that computes on host arrays the host side, which
    a reorder brings up to date; on other devices a new array.

    Attributes:
        version: Grows with every write; the key of values derived from the contents.
        serial: Identity among all memories of the process, past ones included.
        shared: True once several blobs have shared this memory.
        assignment: The slot of an arena that replaces own buffers; None for own buffers.
        host_side, device_side: The two sides, for this package.
        state: The newest side, without regard to ``lazy_init``; for this package.
        initializer: The function of ``lazy_init`` until it has run; for this package.
        watch: Forgets its guard at every change of this memory; for this package.
    """

    __slots__ = (
        "__weakref__", "_fill_stale", "assignment", "device", "device_side",
        "dtype", "host_side", "initializer", "label", "serial", "shared", "size", "state",
        "version", "watch",
    )  # fmt: skip

    def __init__(self, size: int, dtype: str, device: Device, label: str = "an array") -> None:
        self.size, self.dtype, self.device, self.label = size, dtype, device, label
        self.version = 0
        self.serial = next(_serials)
        self.watch = UNWATCHED
        self.shared = False
        self.state = Head.UNINITIALIZED
        order = StreamOrder()
        self.host_side = HostSide(order)
        self.device_side = DeviceSide(device, order)
        self.assignment: Assignment | None = None
        self.initializer: Callable[[np.ndarray], None] | None = None
        fill = bool(settings.get_often("debug_fill_stale"))
        self._fill_stale = fill and dtype.startswith("float")

    # -- properties ----------------------------------------------------------------------------

    @property
    def head(self) -> Head:
        """The newest side; the host side while ``lazy_init`` has not run."""
        return Head.HEAD_AT_CPU if self.initializer is not None else self.state

    @property
    def cleared(self) -> bool:
        """True without contents: a read gives zeros, and a write may skip the read."""
        return self.head is Head.UNINITIALIZED

    @property
    def lazy(self) -> bool:
        """True while the function of ``lazy_init`` has not run."""
        return self.initializer is not None

    @property
    def nbytes(self) -> int:
        """Size of one side, in bytes."""
        return self.size * np.dtype(self.dtype).itemsize

    @property
    def allocated(self) -> int:
        """Allocated bytes on host and device together."""
        return sum(share.nbytes for share in self.shares())

    @property
    def storage(self) -> Stored:
        """Storage of numbers on the device: "float" as on the host, or 16 bits."""
        return self.device_side.storage

    @property
    def device_nbytes(self) -> int:
        """Size of the device side in C order, in bytes."""
        return self.size * np.dtype(ARRAYS.get(self.storage, self.dtype)).itemsize

    @property
    def layout(self) -> PrivateLayout | None:
        """The layout of the private side, if that side is up to date; otherwise None."""
        return self.device_side.layout if self.state in DEVICE_HEADS else None

    @property
    def device_array(self) -> Array | None:
        """The array on the device as it is, or None without one. Shape: (size,)."""
        side = self.device_side
        return side.array if side.device is self.device else None

    @property
    def on_device(self) -> bool:
        """True if the device side is up to date."""
        return self.state in DEVICE_HEADS and self.device_array is not None

    @property
    def persistent(self) -> bool:
        """True if the contents can be read after a pass; False for a shared buffer."""
        return self.assignment is None

    @property
    def viewed(self) -> bool:
        """True if the host side has a live view."""
        return self.host_side.viewed

    def shares(self) -> list[Share]:
        """Return the present arrays, for the ledger of memory in use."""
        if self.assignment is not None:
            return self.assignment.slot.shares()
        found, host, side = [], self.host_side.array, self.device_side
        if host is not None:
            found.append(Share(HOST, id(host), self.nbytes))
        if side.array is not None and side.buffer is not None:
            found.append(Share(HOST, id(side.buffer), int(side.buffer.nbytes)))
        elif side.array is not None:
            found.append(Share(str(side.device), id(side.array), self.device_nbytes))
        return found

    # -- reading and writing -------------------------------------------------------------------

    def cpu_data(self) -> np.ndarray:
        """Return the host side, up to date, for reading. Shape: (size,)."""
        self._check_open()
        return self._to_cpu()

    def mutable_cpu_data(self, *, discard: bool = False) -> np.ndarray:
        """Return the host side for writing; the device side becomes stale.

        ``discard`` promises that everything will be overwritten; contents are then not copied.
        """
        self._check_open()
        elsewhere = self.state is not Head.HEAD_AT_CPU
        host = self._to_cpu(discard=discard)
        self.host_side.wait()
        if elsewhere:
            self._set_host_newest()
        self.version += 1
        self.watch.guard = None
        return host

    def gpu_data(self) -> Array:
        """Return the device side, up to date, for reading. Shape: (size,)."""
        if self.device.shares_host:
            return self.cpu_data()
        return self.stored_data("float")

    def mutable_gpu_data(self, *, discard: bool = False) -> Array:
        """Return the device side for writing; the host side becomes stale.

        ``discard`` promises that everything will be overwritten; contents are then not copied.
        """
        if self.device.shares_host:
            return self.mutable_cpu_data(discard=discard)
        side = self.mutable_stored_data("float", discard=discard)
        return side if self.device.backend.mutable else self.device_side.ref()

    def lazy_init(self, write: Callable[[np.ndarray], None]) -> None:
        """Set a function that writes the host side, (size,), if a read comes before a write."""
        self.clear()
        self.initializer = write

    def clear(self) -> None:
        """Discard the contents: reads give zeros, without a write now."""
        self.state, self.initializer = Head.UNINITIALIZED, None
        self.version += 1
        self.watch.guard = None
        if self.viewed:  # the view must show the zeros
            self.host_side.wait()
            self._host_array()[...] = 0
            self.state = Head.HEAD_AT_CPU

    def grow(self, size: int) -> bool:
        """Have more elements, without the present contents; return True after a change.

        Steps that refer to this memory stay prepared, for smaller shapes too. A memory that several
        blobs share, or that has a live view or a slot of an arena, is not changed.
        """
        if self.shared or self.viewed or self.assignment is not None:
            return False
        self.assign(None)
        self.size = size
        return True

    def to(self, device: Device) -> None:
        """Move to another device; the contents are copied when they are next used."""
        if device is not self.device:
            self.set_storage("float")
        self.device = device
        if self.device_side.device is not device and self.state is not Head.HEAD_AT_GPU:
            self._drop_device_side()

    def async_push(self) -> None:
        """Start a copy of the host side, which must be the newest, to the device."""
        if self.device.shares_host:
            return
        if self.head is not Head.HEAD_AT_CPU:
            message = f"got head {self.state.name}, expected HEAD_AT_CPU; write the host side first"
            raise DeviceError(message, code=ErrorCode.BAD_STATE, head=self.state.name)
        self._to_gpu()

    # -- storage on the device -----------------------------------------------------------------

    def set_storage(self, storage: Stored, *, discard: bool = False) -> None:
        """Store numbers on the device as "float", or rounded to "half" or "bfloat16".

        ``discard`` promises that everything will be overwritten; contents are then not converted.
        """
        side = self.device_side
        if storage == side.storage:
            return
        if self.state is Head.HEAD_AT_GPU and not discard:
            self._to_cpu()
        self._drop_device_side()
        side.storage = storage

    def stored_data(self, storage: Stored, layout: PrivateLayout | None = None) -> Array:
        """Return the contents on the device in a storage and a layout, for reading.

        The device computes on arrays of its own. Contents that are stored otherwise are converted
        to a new array. Shape: (size,).
        """
        self._check_open()
        array, side, backend = self._to_gpu(), self.device_side, self.device.backend
        if side.storage != storage:
            wide = storage == "float"
            array = backend.widen(array, side.storage) if wide else backend.narrow(array, storage)
        return array if side.layout is layout else side.reordered(array, layout)

    def mutable_stored_data(
        self, storage: Stored, layout: PrivateLayout | None = None, *, discard: bool = True
    ) -> Array:
        """Return the device side in a storage and a layout, for writing. Shape: (size,).

        ``discard`` promises that everything will be overwritten; contents are then not converted.
        """
        self._check_open()
        self.set_storage(storage, discard=discard)
        elsewhere = self.state is not Head.HEAD_AT_GPU
        array = self._to_gpu(discard=True) if discard else self.to_layout(layout)
        self.device_side.layout = layout
        if elsewhere:
            self._set_device_newest()
        self.version += 1
        self.watch.guard = None
        return array

    def to_layout(self, layout: PrivateLayout | None) -> Array:
        """Bring the contents to the device, in a layout; return its array. Shape: (size,)."""
        array, side = self._to_gpu(), self.device_side
        if side.layout is not layout:
            array[...] = side.reordered(array, layout)
            side.layout, self.watch.guard = layout, None
        return array

    def overwrite(self, array: Array) -> None:
        """Round values to the beginning of the device side, which has 16 bits. Shapes: any."""
        self.device.backend.narrow(array, self.storage, self.mutable_stored_data(self.storage))

    # -- the private side, where the device computes on host arrays ----------------------------

    def private_data(self, layout: PrivateLayout, *, alone: bool = False) -> Array | None:
        """Return the private side in ``layout``, up to date, for reading. Shape: (layout.size,).

        ``alone`` drops a host side that is copied here, unless it has other users. A later reader
        allocates it again, and it stays then. The result is None if the private side is up to date
        in another layout; ``convert`` then gives the contents in this one.
        """
        here = self.layout
        if here is not None and self.device_side.device is self.device:
            return self.device_side.array if here is layout else None
        host = self._to_cpu()
        side = self._private_array(layout)
        host_side = self.host_side
        in_use = self.viewed or host_side.borrowed or self.assignment is not None
        if alone and not (in_use or host_side.dropped):
            with Uninterrupted():
                self.device.backend.pack_and_release(host, layout, side)
                self.state, host_side.dropped = Head.HEAD_AT_GPU, True
                host_side.replace(None)
        else:
            self.device.backend.pack(host, layout, side)
            self.state = Head.SYNCED
        self.watch.guard = None
        transfers.note(reorders=1)
        return side

    def mutable_private_data(self, layout: PrivateLayout) -> Array:
        """Return the private side for writing; contents of another layout become undefined."""
        if self.device_side.device is not self.device:
            self._leave_old_device(discard=True)
        side = self._private_array(layout)
        if self.state is not Head.HEAD_AT_GPU:
            self._set_device_newest()
        self.version += 1
        self.watch.guard = None
        return side

    def convert(self, layout: PrivateLayout, target: Array) -> None:
        """Write the contents to ``target``, (layout.size,), in ``layout``; no side changes."""
        backend, here, side = self.device.backend, self.layout, self.device_side
        if here is not None and here.shape == layout.shape and side.device is self.device:
            backend.repack(side.array, here, target, layout)
        else:
            backend.pack(self.cpu_data(), layout, target)
        transfers.note(reorders=1)

    def exchange_private(self, layout: PrivateLayout, side: Array) -> Array | None:
        """Replace the private side, and return the previous one, the input of an in-place Step."""
        if self.device_side.device is not self.device:
            self._leave_old_device(discard=True)
        before = self.device_side.array
        self._distrust_device_side()
        self.device_side.replace(side, self.device, layout)
        self._set_device_newest()
        self.version += 1
        self.watch.guard = None
        return before

    # -- recorded work -------------------------------------------------------------------------

    def order_after(self, where: object) -> None:
        """Order recorded work of the queue ``where`` after the earlier work on the device array."""
        order = self.device_side.order
        if order.last is not where:
            self.device.backend.order_after(order.last)
            order.last = where

    # -- arrays of the caller, and live views --------------------------------------------------

    def set_cpu_data(self, array: np.ndarray) -> None:
        """Make a contiguous ``array`` (size,) of equal dtype the host side, without a copy."""
        if array.shape != (self.size,) or array.dtype != self.dtype or not array.flags.c_contiguous:
            got, expected, code = tuple(array.shape), (self.size,), ErrorCode.INCOMPATIBLE
            message = (
                f"got a {array.dtype} array of shape {got}, expected a contiguous {self.dtype} "
                f"array of shape {expected}"
            )
            raise ShapeError(message, code=code, got=got, expected=expected)
        if self.state is Head.SYNCED:  # until the host side is the new one
            self.state = Head.HEAD_AT_GPU
        self.host_side.replace(array)
        self._set_host_newest()
        self.version += 1
        self.watch.guard = None
        ledger.adopted(self)

    def set_gpu_data(self, array: Array) -> None:
        """Make a device ``array`` of shape (size,) the device side, without a copy."""
        got, expected, code = tuple(array.shape), (self.size,), ErrorCode.SHAPE_MISMATCH
        if got != expected:
            message = f"got an array of shape {got}, expected {expected}"
            raise ShapeError(message, code=code, got=got, expected=expected)
        if self.device.shares_host:
            self.set_cpu_data(array)
            return
        self._distrust_device_side()
        self.device_side.replace(array, self.device)
        self._set_device_newest()
        self.version += 1
        self.watch.guard = None
        ledger.adopted(self)

    def live_view(self) -> np.ndarray:
        """Return a live, writable view of the host side. Shape: (size,).

        While the view, or a slice of it, exists, the host side is authoritative between passes: a
        pass reads the values written into the view, and updates the view at its end.
        """
        return self.host_side.view(self.mutable_cpu_data(), self)

    def before_pass(self) -> None:
        """Make a host side with live views the newest, for values written through a view."""
        if self.viewed and not self.cleared and self.assignment is None:
            self.mutable_cpu_data()

    def after_pass(self) -> None:
        """Bring a host side with live views up to date."""
        if self.viewed and self.state is Head.HEAD_AT_GPU and self.assignment is None:
            self._to_cpu()

    # -- shared buffers ------------------------------------------------------------------------

    def assign(self, assignment: Assignment | None) -> None:
        """Use the buffers of a slot, or own buffers for None; the contents are discarded."""
        self.assignment = assignment
        self.host_side.replace(None)
        self.device_side.replace(None, self.device)
        order = StreamOrder() if assignment is None else assignment.slot.order
        self.host_side.order = self.device_side.order = order
        self.state, self.initializer = Head.UNINITIALIZED, None
        self.version += 1
        self.watch.guard = None

    def move(self, assignment: Assignment) -> None:
        """Use another place in the top of a Concat, for other shapes; the slots are the same."""
        self.assignment = assignment

    def _check_open(self) -> None:
        if self.assignment is not None:
            self.assignment.check_open()

    # -- the four states -----------------------------------------------------------------------

    def _to_cpu(self, *, discard: bool = False) -> np.ndarray:
        # other threads may read at the same time, as clones of a net do: a new array is set when it
        # is complete, and before the state
        initializer = self.initializer
        match self.state:
            case Head.UNINITIALIZED:
                fresh = self.host_side.array is None and self.assignment is None  # zeros
                host = self._host_array()
                if initializer is not None and not discard:
                    initializer(host)
                elif not (discard or fresh):
                    self.host_side.wait()
                    host[...] = 0
                self.host_side.array = host
                self.state, self.initializer = Head.HEAD_AT_CPU, None
                self.watch.guard = None
            case Head.HEAD_AT_GPU:
                host = self._host_array()
                if not discard:
                    here = self.device_side.device.shares_host
                    if not here and (guard := current_guard()) is not None:
                        guard.downloads(self)
                    self.host_side.wait()
                    self.device_side.copy_to(host)
                self.host_side.array = host
                self.state = Head.HEAD_AT_CPU if discard else Head.SYNCED
                self.watch.guard = None
                if self.device_side.device is not self.device:
                    self._drop_device_side()
            case _:
                host = self._host_array()
        return host

    def _to_gpu(self, *, discard: bool = False) -> Array:
        if self.device_side.device is not self.device:
            self._leave_old_device(discard=discard)
        if self.initializer is not None and not discard:
            self._to_cpu()
        order = self.device_side.order
        before = order.last
        self.device_side.follow()
        if order.last is not before:
            self.watch.guard = None
        match self.state:
            case Head.UNINITIALIZED:
                self.watch.guard = None
                fresh = self.device_side.array is None and self.assignment is None
                self._device_array()
                if not (discard or fresh):
                    self.device_side.fill(0)
                self.state, self.initializer = Head.HEAD_AT_GPU, None
            case Head.HEAD_AT_CPU:
                self.watch.guard = None
                self._device_array()
                if not discard:
                    if (guard := current_guard()) is not None:
                        guard.uploads(self)
                    self.host_side.wait()
                    self.host_side.order.copy = self.device_side.copy_from(self._host_array())
                self.state = Head.HEAD_AT_GPU if discard else Head.SYNCED
        return self.device_side.array

    # The setting debug_fill_stale fills the side that becomes stale with NaN, to show its readers.

    def _set_host_newest(self) -> None:
        self.state, self.initializer = Head.HEAD_AT_CPU, None
        if not self.device.shares_host and (guard := current_guard()) is not None:
            guard.wrote(self)
        if self._fill_stale and self.device_side.array is not None:
            self.host_side.wait()
            self.device_side.fill(math.nan)

    def _set_device_newest(self) -> None:
        self.state, self.initializer = Head.HEAD_AT_GPU, None
        host = self.host_side.array
        if self._fill_stale and not self.viewed and host is not None:
            self.host_side.wait()
            host[...] = math.nan

    def _distrust_device_side(self) -> None:
        """Make the host side the newest while the device side is replaced.

        The replacement may be interrupted. Contents that are on the device alone are about to be
        overwritten.
        """
        self.watch.guard = None
        if self.state is Head.SYNCED:
            self.state = Head.HEAD_AT_CPU

    # -- arrays --------------------------------------------------------------------------------

    def _leave_old_device(self, *, discard: bool) -> None:
        """Copy contents that are only on the old device to the host, and drop that side."""
        if self.state is Head.HEAD_AT_GPU and not discard:
            self._to_cpu()
        self._drop_device_side()

    def _drop_device_side(self) -> None:
        self.host_side.wait()
        self.watch.guard = None
        self.device_side.replace(None, self.device)
        if self.state is Head.SYNCED:
            self.state = Head.HEAD_AT_CPU
        elif self.state is Head.HEAD_AT_GPU:
            self.state = Head.UNINITIALIZED

    def _host_array(self) -> np.ndarray:
        """Return the array on the host, or a new one."""
        array = self.host_side.array
        if array is None:
            make = partial(self.device.backend.empty_host, dtype=self.dtype)
            array = allocate(self, HOST, self.size, make)
        return array

    def _device_array(self) -> Array:
        side = self.device_side
        if side.array is None:
            dtype = ARRAYS.get(side.storage, self.dtype)
            make = partial(self.device.backend.zeros, dtype=dtype)
            side.array = allocate(self, str(self.device), self.size, make, dtype)
        return side.array

    def _private_array(self, layout: PrivateLayout) -> Array:
        if not self.device.backend.packs:  # a net on another device shares this memory
            if not self.device.shares_host:
                message = (
                    f"{self.label} is on {self.device} for a net that shares it; move both nets "
                    "to one device with net.to(...)"
                )
                raise DeviceError(message, code=ErrorCode.CONFLICT, memory=self.label)
            self.to(Device("cpu"))
        side = self.device_side
        if side.layout is layout:
            return side.array
        place = self.assignment
        if place is not None and layout not in side.views:
            side.views[layout] = self._new_private_array(layout)  # a part of a slot's array
        if side.view(layout, shared=place is not None) is not None:
            self._distrust_device_side()
            side.use(layout)
        else:
            array = self._new_private_array(layout)
            self._distrust_device_side()
            side.replace(array, self.device, layout)
        return side.array

    def _new_private_array(self, layout: PrivateLayout) -> Array:
        return allocate(self, "private", layout.size, self.device.backend.empty_private)

    def __repr__(self) -> str:
        return f"SyncedMemory({self.size} {self.dtype} on {self.device}, {self.state.name})"
