"""Ledger: what the memories of this process hold, place by place.

Nothing is added up while arrays come and go: who asks has them counted.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import NamedTuple, Protocol

__all__ = ["HOST", "Holder", "Ledger", "Share", "ledger"]

HOST = "host"
"""The place of arrays on the host; others are called by their device."""


class Share(NamedTuple):
    """An array that a memory holds, perhaps with others.

    Attributes:
        place: ``HOST``, or the name of a device with memory of its own.
        array: Tells it from every other array there is at the time.
        nbytes: Its size, in bytes.
    """

    place: str
    array: int
    nbytes: int


class Holder(Protocol):
    """What holds arrays."""

    @property
    def serial(self) -> int:
        """Tells it from every other holder of the process."""

    def shares(self) -> Iterable[Share]:
        """Return the arrays that it holds now."""


class Ledger:
    """All that hold arrays, as long as they are used elsewhere."""

    def __init__(self) -> None:
        self._holders: weakref.WeakValueDictionary[int, Holder] = weakref.WeakValueDictionary()
        self._at_most: dict[str, int] = {}

    def note(self, holder: Holder) -> None:
        """Know a holder from now on."""
        self._holders[holder.serial] = holder

    def adopted(self, holder: Holder) -> None:
        """Know a holder that holds an array which nobody has asked room for."""
        self.note(holder)
        self.unasked()

    def unasked(self) -> None:
        """Note that arrays come which nobody asks room for."""
        self._at_most.clear()

    def used(self, place: str) -> int:
        """Return the bytes of all arrays in a place; those that several hold count once."""
        found = {
            share.array: share.nbytes
            for ref in self._holders.valuerefs()
            if (holder := ref()) is not None
            for share in holder.shares()
            if share.place == place
        }
        return sum(found.values())

    def has_room(self, place: str, nbytes: int, limit: int) -> bool:
        """Whether so many bytes more stay within a limit; asked before each array is made.

        What was found at last and what was asked for since is more than there can be, so that all
        arrays need not be counted each time.
        """
        at_most = self._at_most.get(place, limit) + nbytes
        if at_most > limit:
            at_most = self.used(place) + nbytes
        if at_most > limit:
            return False
        self._at_most[place] = at_most
        return True


ledger = Ledger()
