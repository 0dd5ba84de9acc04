"""Reusable buffers for the records of a batch."""

from __future__ import annotations

__all__ = ["Rooms"]


class Rooms:
    """Buffers that records are read into, reused for the next batch.

    New memory costs more time than the read: the system clears it first.
    """

    def __init__(self) -> None:
        self._rooms: list[memoryview] = []
        self._used = 0

    def clear(self) -> None:
        """Reuse all buffers; records in them become invalid."""
        self._used = 0

    def next(self, size: int) -> memoryview:
        """Return a buffer.

        Args:
            size: In bytes.
        """
        if self._used == len(self._rooms):
            self._rooms.append(memoryview(b""))
        if len(self._rooms[self._used]) < size:
            self._rooms[self._used] = memoryview(bytearray(size))
        self._used += 1
        return self._rooms[self._used - 1][:size]
