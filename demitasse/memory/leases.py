"""Leases: who holds a live view of a memory's host side.

While any view is held, every pass takes over what was written through it before, and brings it up
to date afterwards. While none is held, passes skip both.
"""

from __future__ import annotations

import weakref
from typing import Any, ClassVar

import numpy as np

__all__ = ["Lease", "leased_memories", "leases_alive"]


class Lease:
    """The owner of a live view: while it lives, somebody may read or write the host side.

    A numpy array made from a Lease, and every slice or view of that array, keeps it alive.

    Args:
        host: The array.
        memory: The memory whose host side it is, which a view does not keep alive.
    """

    __slots__ = ("__array_interface__", "__weakref__", "host")

    alive: ClassVar[dict[int, weakref.ref[Any]]] = {}
    """The memories of all leases. A dictionary is copied as one; a set of weak references is not,
    and other threads take views while a pass looks here."""

    def __init__(self, host: np.ndarray, memory: object) -> None:
        self.host = host
        self.__array_interface__ = host.__array_interface__
        self.alive[id(self)] = weakref.ref(memory)

    def __del__(self) -> None:
        self.alive.pop(id(self), None)


def leases_alive() -> bool:
    """Whether any live view of any memory is held; False makes a pass cheaper."""
    return bool(Lease.alive)


def leased_memories() -> list[Any]:
    """Return the memories that live views are held of."""
    found = [memory() for memory in Lease.alive.copy().values()]
    return [memory for memory in found if memory is not None]
