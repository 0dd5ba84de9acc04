"""What an array is to the engine."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["Array", "Event", "PrivateLayout"]

Array = Any  # an array of some namespace; shapes live in docstrings


class Event(Protocol):
    """A point in a device's queue of work."""

    def synchronize(self) -> None:
        """Wait until the device has passed this point."""


class PrivateLayout(Protocol):
    """An order of a shape's elements that only a backend's Steps understand.

    Equal layouts are the same object.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def size(self) -> int: ...
