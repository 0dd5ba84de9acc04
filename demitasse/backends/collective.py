"""Collective communication between devices of several processes or threads."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from demitasse.backends.arrays import Array


class Collective(Protocol):
    """A group that exchanges arrays; all members call the same methods in the same order.

    All arrays are one-dimensional and contiguous. Every method may raise ParallelError: another
    member is lost, or too late.

    Attributes:
        name: Name of the library or network that connects the members, for messages.
    """

    rank: int
    size: int
    name: str

    def broadcast(self, array: Array) -> None:
        """Overwrite an array with that of member 0."""

    def alltoall(self, parts: Sequence[Array], sizes: Sequence[int]) -> list[Array]:
        """Send a part to each rank; return the parts received, of these sizes, by sending rank."""

    def allgather(self, part: Array, whole: Array, bounds: Sequence[int]) -> None:
        """Write rank r's part to ``whole[bounds[r]:bounds[r + 1]]``, for all ranks."""

    def allreduce(self, array: Array) -> None:
        """Replace an array by the sum over all ranks, in the library's order."""


class DeviceCollective(Collective, Protocol):
    """A group of devices that queue their work."""

    def start_allreduce(self, array: Array) -> None:
        """Queue an ``allreduce``; work queued later reads the sum."""

    def side_stream(self) -> AbstractContextManager[None]:
        """Return a context whose work is queued on a side stream, after all work queued before.

        Another thread may enter the context if this device is current. Later work waits for it
        only if both use the same memories.
        """

    def synchronize(self) -> None:
        """Wait for the work that the calling thread has queued on the current stream."""


class Connector(Protocol):
    """Connects a device to those of other processes or threads."""

    def missing(self) -> str:
        """Return the reason why it cannot be connected, and what to do; "" if it can."""

    def place(self) -> str:
        """Return a key that identifies this device on its machine."""

    def new_uid(self) -> bytes:
        """Return an id for a new group, of at most 128 bytes.

        Raises:
            ParallelError: The library fails.
        """

    def join(self, uid: bytes, rank: int, size: int, timeout: float) -> DeviceCollective:
        """Return the group of an id of ``new_uid``, once all ``size`` members have joined.

        Members wait ``timeout`` seconds for each other; ParallelError if the library fails.
        """
