"""Memory for the records of a batch."""

from __future__ import annotations

__all__ = ["Rooms"]


class Rooms:
    """Memory that records are read into, used again for those of the next batch.

    New memory costs more time than what is read into it: the system clears it first.
    """

    def __init__(self) -> None:
        self._rooms: list[memoryview] = []
        self._used = 0

    def clear(self) -> None:
        """Use all of it again; what was read before is dead."""
        self._used = 0

    def next(self, size: int) -> memoryview:
        """Return some memory.

        Args:
            size: In bytes.
        """
        if self._used == len(self._rooms):
            self._rooms.append(memoryview(b""))
        if len(self._rooms[self._used]) < size:
            self._rooms[self._used] = memoryview(bytearray(size))
        self._used += 1
        return self._rooms[self._used - 1][:size]
