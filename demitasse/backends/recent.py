"""The few values used last, by key."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["Recent"]

V = TypeVar("V")


class Recent(OrderedDict[Hashable, V], Generic[V]):
    """The values used last, by key; a new one takes the place of the one unused for longest.

    Args:
        most: How many are kept.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def find(self, key: Hashable) -> V | None:
        """Return the value of ``key``, or None."""
        if key not in self:
            return None
        self.move_to_end(key)
        return self[key]

    def keep(self, key: Hashable, value: V) -> V:
        """Keep a value, and return it."""
        self[key] = value
        self.move_to_end(key)
        while len(self) > self._most:
            self.popitem(last=False)
        return value
