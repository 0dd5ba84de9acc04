"""Memory of devices: how much is free, and how much blobs use."""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from demitasse.core.text import bytes_text

__all__ = ["HOST", "Holder", "Ledger", "MemoryInfo", "Share", "ledger"]

HOST = "host"  # place of arrays on the host; the place of other arrays is their device's name


@dataclass(frozen=True)
class MemoryInfo:
    """Memory of a device, in bytes, at the time of the query.

    Devices that compute on host arrays report the host's memory: the machine's, or that of the
    process's control group (container, batch job).

    Attributes:
        device: Name of the device.
        total: Size of the memory; None if unknown.
        free: Memory that can still be allocated, within the limit; None if unknown.
        used: Bytes in blobs, parameters and solver histories of this process.
        pooled: Bytes that the device library's pool retains for later arrays; they count as free.
        limit: The setting ``memory_limit``; 0 for none.
        process: Resident host memory of the whole process; None if unknown, and on devices with
            memory of their own.
    """

    device: str
    total: int | None
    free: int | None
    used: int
    pooled: int = 0
    limit: int = 0
    process: int | None = None

    def __str__(self) -> str:
        parts = []
        if self.total is not None and self.free is not None:
            parts.append(f"{bytes_text(self.free)} free of {bytes_text(self.total)}")
        elif self.total is not None:
            parts.append(f"{bytes_text(self.total)} in all")
        parts.append(f"{bytes_text(self.used)} in blobs")
        if self.pooled:
            parts.append(f"{bytes_text(self.pooled)} kept in pools")
        if self.process is not None:
            parts.append(f"{bytes_text(self.process)} in the whole process")
        if self.limit:
            parts.append(f"limited to {bytes_text(self.limit)}")
        return ", ".join(parts)


class Share(NamedTuple):
    """One array of a holder, which several holders may share: its place, identity and bytes."""

    place: str
    array: int
    nbytes: int


class Holder(Protocol):
    """An owner of arrays, such as a blob's memory."""

    @property
    def serial(self) -> int:
        """Identity of the holder within the process."""

    def shares(self) -> Iterable[Share]:
        """Return the holder's present arrays."""


class Ledger:
    """All live holders of arrays, by weak reference.

    Allocation updates no counter: ``used`` counts the arrays when it is called.
    """

    def __init__(self) -> None:
        self._holders: weakref.WeakValueDictionary[int, Holder] = weakref.WeakValueDictionary()
        self._upper_bound: dict[str, int] = {}

    def register(self, holder: Holder) -> None:
        """Add a holder."""
        self._holders[holder.serial] = holder

    def adopted(self, holder: Holder) -> None:
        """Add a holder of an array that was allocated elsewhere."""
        self.register(holder)
        self.invalidate()

    def invalidate(self) -> None:
        """Discard cached upper bounds, after arrays were added without ``has_room``."""
        self._upper_bound.clear()

    def used(self, place: str) -> int:
        """Return the bytes of all arrays in a place; a shared array counts once."""
        sizes = {
            share.array: share.nbytes
            for ref in self._holders.valuerefs()
            if (holder := ref()) is not None
            for share in holder.shares()
            if share.place == place
        }
        return sum(sizes.values())

    def has_room(self, place: str, nbytes: int, limit: int) -> bool:
        """Return True if ``nbytes`` more stay within a limit; call this before each allocation.

        The last exact count plus all bytes requested since is an upper bound of the usage. All
        arrays are counted only when that bound exceeds the limit.
        """
        bound = self._upper_bound.get(place, limit) + nbytes
        if bound > limit:
            bound = self.used(place) + nbytes
        if bound > limit:
            return False
        self._upper_bound[place] = bound
        return True


ledger = Ledger()
