"""The two sides of a memory: which is newest, what it costs to bring the other up to date.

Source: Caffe, ``src/caffe/syncedmem.cpp``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from enum import Enum
from functools import partial

import numpy as np

from demitasse.backends.arrays import Array, PrivateLayout
from demitasse.backends.home import Home
from demitasse.backends.storage import ARRAYS, Stored
from demitasse.core.config import settings
from demitasse.core.device import Device
from demitasse.core.memory_info import HOST, Share, ledger
from demitasse.core.out_of_memory import with_location
from demitasse.core.text import bytes_text
from demitasse.errors import OutOfMemoryError
from demitasse.memory.arena import Assignment, Slot
from demitasse.memory.guard import watching
from demitasse.memory.sides import DeviceSide, HostSide, Traffic

__all__ = ["DEVICE_HEADS", "Head", "TwoSides"]


class Head(Enum):
    """Which side of a memory is newest."""

    UNINITIALIZED = 0
    HEAD_AT_CPU = 1
    HEAD_AT_GPU = 2
    SYNCED = 3


DEVICE_HEADS = (Head.HEAD_AT_GPU, Head.SYNCED)
"""Heads at which the device side is up to date."""


_serials = itertools.count()


class TwoSides:
    """``size`` elements on the host, on a device, or on both, and how they get there.

    ``SyncedMemory`` is this with what its users ask for; here is how a side is brought up to date.

    Args:
        size: How many elements.
        dtype: "float32", "float64", "int32", ...
        device: Where the device side lives.
        called: What it is called in messages.

    Attributes:
        version: Grows with every write; what is derived from the contents is keyed by it.
        serial: Tells this memory from every other of the process, past ones included.
        home: Where in another memory Steps may write it, or that others may be written there in it;
            None for neither.
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
        "home",
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
        self.home: Home | None = None
        self._initial: Callable[[np.ndarray], None] | None = None
        self._poison = bool(settings.get_often("debug_fill_stale")) and dtype.startswith("float")

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
        return host + (self.device_nbytes if there.layout is None else int(there.array.nbytes))

    @property
    def storage(self) -> Stored:
        """How the device side keeps numbers: "float" as the host does, or in 16 bits."""
        return self._device_side.storage

    @property
    def device_nbytes(self) -> int:
        """Size of the device side in C order, in bytes."""
        return self.size * np.dtype(self._device_dtype).itemsize

    @property
    def _device_dtype(self) -> str:
        return ARRAYS.get(self._device_side.storage, self.dtype)

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
            found.append(Share(str(there.device), id(there.array), self.device_nbytes))
        return found

    @property
    def lasts(self) -> bool:
        """Whether its contents are there after a pass; where they share a buffer, nobody looks."""
        return self._assignment is None

    @property
    def leased(self) -> bool:
        """Whether a live view of the host side is held by somebody."""
        return self._host_side.leased

    def _check_open(self) -> None:
        if self._assignment is not None:
            self._assignment.check_open()

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

    def _may_let_go_of_host(self) -> bool:
        """Whether the host side may go: it is ours, nobody sees it, and nobody needed it again."""
        host = self._host_side
        shared = self.leased or host.given or self._assignment is not None
        return not (shared or host.let_go)

    def _let_go_of_host(self) -> None:
        """Keep the device side alone, which is up to date."""
        self._head, self._host_side.let_go = Head.HEAD_AT_GPU, True
        self._host_side.replace(None)

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
            dtype = self._device_dtype
            make = partial(self.device.backend.zeros, dtype=dtype)
            side.array = self._allocate(str(self.device), self.size, make, dtype)
        return side.array

    def _allocate(
        self,
        where: str,
        size: int,
        make: Callable[[int], Array],
        dtype: str = "",
        slot: Slot | None = None,
    ) -> Array:
        """Return a new array, or the part of the slot's that is ours for now.

        Args:
            where: On the host, on a device, or private.
            size: How many elements.
            make: Returns a new array of so many.
            dtype: The kind of the elements; "" for ours.
            slot: Another slot than ours.

        Raises:
            OutOfMemoryError: There is no room, or the setting ``memory_limit`` leaves none.
        """
        dtype = dtype or self.dtype

        def within_limit(size: int) -> Array:
            self._ask_for_room(where, size, dtype)
            try:
                return make(size)
            except (OutOfMemoryError, MemoryError, OSError) as error:
                fault = with_location(error, self.called)
                raise fault from fault.__cause__

        ledger.register(self)
        if self._assignment is None:
            return within_limit(size)
        return (slot or self._assignment.slot).lend((where, dtype), size, within_limit)

    def _private_array(self, layout: PrivateLayout) -> Array:
        side = self._device_side
        if side.layout is not layout:
            array = self._array_for(layout)
            self._distrust_device_side()
            side.replace(array, self.device, layout)
        return side.array

    def _array_for(self, layout: PrivateLayout) -> Array:
        """Return an array for the private side in a layout."""
        make, place = self.device.backend.empty_private, self._assignment
        home = place.home if place is not None else None
        if place is None or home is None:
            return self._allocate("private", layout.size, make)
        at_home = layout.home == home
        if place.host is None:
            # others may lie where it would be in the layout of its home
            return self._allocate("private" if at_home else "apart", layout.size, make)
        if not at_home or self._poison:
            return self._allocate("private", layout.size, make)
        whole = self._allocate("private", math.prod(home.whole), make, slot=place.host)
        return whole[home.first : home.first + home.size]

    def _ask_for_room(self, where: str, size: int, dtype: str) -> None:
        """See that so many elements more are within the limit of our device.

        Host sides of a device with memory of its own are not: its limit is not the host's.
        """
        limit = settings.get_often("memory_limit")
        if not limit or (where == HOST and not self.device.shares_host):
            ledger.invalidate()
            return
        place = HOST if self.device.shares_host else str(self.device)
        nbytes = size * np.dtype(dtype).itemsize
        if not ledger.has_room(place, nbytes, limit):
            message = (
                f"{self.called} needs {bytes_text(nbytes)} on {self.device}, where nets hold "
                f"{bytes_text(ledger.used(place))} and may hold {bytes_text(limit)} (memory_limit, "
                f"{settings.where('memory_limit')}); make the batch smaller, let go of other nets, "
                "or raise the limit"
            )
            raise OutOfMemoryError(message)
