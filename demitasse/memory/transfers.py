"""How often data moved between host and device, or changed its layout."""

from __future__ import annotations

import threading
from dataclasses import dataclass

__all__ = ["Transfers", "transfers"]


@dataclass
class _Counts:
    """What one thread has counted."""

    to_device: int = 0
    to_host: int = 0
    reorders: int = 0
    bytes_to_device: int = 0
    bytes_to_host: int = 0


class _OfThread(threading.local):
    counts: _Counts | None = None


class Transfers:
    """Counts of copies between host and device, for tests and reports.

    Every thread counts for itself, so there is no lock that an interrupt could leave taken.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Count from zero again."""
        self._own, self._all = _OfThread(), list[_Counts]()

    @property
    def to_device(self) -> int:
        """Copies from host to device."""
        return sum(counts.to_device for counts in self._all)

    @property
    def to_host(self) -> int:
        """Copies from device to host."""
        return sum(counts.to_host for counts in self._all)

    @property
    def reorders(self) -> int:
        """Changes of layout on one device."""
        return sum(counts.reorders for counts in self._all)

    @property
    def reorders_here(self) -> int:
        """Changes of layout that this thread has made."""
        counts = self._own.counts
        return 0 if counts is None else counts.reorders

    @property
    def bytes_to_device(self) -> int:
        """Bytes copied from host to device."""
        return sum(counts.bytes_to_device for counts in self._all)

    @property
    def bytes_to_host(self) -> int:
        """Bytes copied from device to host."""
        return sum(counts.bytes_to_host for counts in self._all)

    def note(self, *, up: int = 0, down: int = 0, reorders: int = 0) -> None:
        """Count one copy of ``up`` bytes to the device or ``down`` bytes to the host.

        Args:
            up: Bytes copied to the device.
            down: Bytes copied to the host.
            reorders: How many times the layout of something was changed.
        """
        counts = self._own.counts
        if counts is None:
            counts = self._own.counts = _Counts()
            self._all.append(counts)
        counts.reorders += reorders
        if up:
            counts.to_device += 1
            counts.bytes_to_device += up
        if down:
            counts.to_host += 1
            counts.bytes_to_host += down


transfers = Transfers()
