"""How often data moved between host and device, or changed its layout."""

from __future__ import annotations

import threading

__all__ = ["Transfers", "transfers"]


class Transfers:
    """Counts of copies between host and device, for tests and reports.

    Attributes:
        to_device: Copies from host to device.
        to_host: Copies from device to host.
        reorders: Changes of layout on one device.
        bytes_to_device: Bytes of the first.
        bytes_to_host: Bytes of the second.
    """

    def __init__(self) -> None:
        # reentrant: one that an interrupt left taken still lets its own thread in
        self._lock = threading.RLock()
        self.reset()

    def reset(self) -> None:
        """Count from zero again."""
        self.to_device = self.to_host = self.reorders = 0
        self.bytes_to_device = self.bytes_to_host = 0

    def note(self, *, up: int = 0, down: int = 0, reorders: int = 0) -> None:
        """Count one copy of ``up`` bytes to the device or ``down`` bytes to the host.

        Args:
            up: Bytes copied to the device.
            down: Bytes copied to the host.
            reorders: How many times the layout of something was changed.
        """
        with self._lock:
            self.reorders += reorders
            if up:
                self.to_device += 1
                self.bytes_to_device += up
            if down:
                self.to_host += 1
                self.bytes_to_host += down


transfers = Transfers()
