"""Collective communication between devices of several processes or threads."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from demitasse.backends.arrays import Array

__all__ = ["Collective", "Connector", "DeviceCollective"]


class Collective(Protocol):
    """A group that exchanges arrays; all members call the same methods in the same order.

    All arrays are one-dimensional and contiguous. Every method may raise ParallelError: another
    member is lost, or too late.

    Attributes:
        rank: The number of this member, from 0.
        size: How many there are.
        name: What connects them, for messages.
    """

    rank: int
    size: int
    name: str

    def broadcast(self, array: Array) -> None:
        """Overwrite an array with that of member 0."""

    def alltoall(self, parts: Sequence[Array], sizes: Sequence[int]) -> list[Array]:
        """Give each member its part; return what each has for us.

        Args:
            parts: Arrays by the rank of who gets them.
            sizes: The sizes of those we get, by the rank of who gives them.
        """

    def allgather(self, part: Array, whole: Array, bounds: Sequence[int]) -> None:
        """Put everybody's part into ``whole``: rank r's from ``bounds[r]`` to ``bounds[r + 1]``."""

    def allreduce(self, array: Array) -> None:
        """Replace an array by the sum of everybody's, added in whatever order is fastest."""


class DeviceCollective(Collective, Protocol):
    """A group of devices that queue their work."""

    def start_allreduce(self, array: Array) -> None:
        """Queue what ``allreduce`` does; what is queued behind it finds the sum."""

    def side_stream(self) -> AbstractContextManager[None]:
        """Return a block whose work is queued behind all that is queued now, and beside the rest.

        Another thread may enter it, where this device is current. Later work waits for it only
        where it uses the same memories.
        """

    def synchronize(self) -> None:
        """Wait until everything that the calling thread has queued where it is now is done."""


class Connector(Protocol):
    """Connects a device to those of other processes or threads."""

    def missing(self) -> str:
        """Return why it cannot be connected, and what to do; "" where it can."""

    def place(self) -> str:
        """Return what tells this device from all others of its machine."""

    def new_uid(self) -> bytes:
        """Return a name for a group that is about to meet; it has at most 128 bytes.

        Raises:
            ParallelError: The library fails.
        """

    def join(self, uid: bytes, rank: int, size: int, timeout: float) -> DeviceCollective:
        """Return the group of this name, once all its members have come.

        Args:
            uid: What one of them got of ``new_uid``.
            rank: The number of this member.
            size: How many there are.
            timeout: Seconds that members wait for each other.

        Raises:
            ParallelError: The library fails.
        """
