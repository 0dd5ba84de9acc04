"""Leases: who holds a live view of a memory's host side.

While any view is held, every pass takes over what was written through it before, and brings it up
to date afterwards. While none is held, passes skip both.
"""

from __future__ import annotations

import weakref

import numpy as np

__all__ = ["Lease", "leases_alive"]


class Lease:
    """The owner of a live view: while it lives, somebody may read or write the host side.

    A numpy array made from a Lease, and every slice or view of that array, keeps it alive.
    """

    __slots__ = ("__array_interface__", "__weakref__", "host")

    def __init__(self, host: np.ndarray) -> None:
        self.host = host
        self.__array_interface__ = host.__array_interface__
        _leases.add(self)


_leases: weakref.WeakSet[Lease] = weakref.WeakSet()


def leases_alive() -> bool:
    """Whether any live view of any memory is held; False makes a pass cheaper."""
    return bool(_leases)
