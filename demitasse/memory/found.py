"""What calls that are made again find in memories, and what they leave there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from demitasse.backends.arrays import Array, PrivateLayout
from demitasse.memory.sides import DeviceSide, HostSide
from demitasse.memory.synced import SyncedMemory
from demitasse.memory.two_sides import Head

__all__ = ["Found"]


class _Same(NamedTuple):
    """A memory that holds what it held in the pass before, and is only read."""

    memory: SyncedMemory
    side: DeviceSide
    array: Array | None
    head: Head
    version: int


class _Given(NamedTuple):
    """A memory that something else has written since, or whose values change; it is read first."""

    memory: SyncedMemory
    head: Head
    fresh: bool


class _Placed(NamedTuple):
    """A memory whose arrays must be where they were, as they are read or written there."""

    host_side: HostSide
    host: Array | None
    side: DeviceSide
    array: Array | None
    layout: PrivateLayout | None


class _Before(NamedTuple):
    """A memory before the calls, and its version after the pass before; None for unknown."""

    memory: SyncedMemory
    head: Head
    version: int
    known: int | None
    placed: _Placed

    @classmethod
    def of(cls, memory: SyncedMemory, versions: Mapping[int, int]) -> _Before:
        host, there = memory._host_side, memory._device_side
        placed = _Placed(host, host.array, there, there.array, there.layout)
        return cls(memory, memory._head, memory.version, versions.get(memory.serial), placed)


class Found:
    """How memories were found before some calls were made, and how they were left.

    What calls are right depends on where a memory's values lie, and on which side is newest. It may
    also depend on whether they are those of the pass before, for copies in other layouts are kept.

    Args:
        memories: All that the calls may touch.
        overwritten: Serials of those whose values from before are not looked at.
        versions: Those of the memories after the pass before, by serial.
    """

    def __init__(
        self,
        memories: Iterable[SyncedMemory],
        overwritten: frozenset[int],
        versions: Mapping[int, int],
    ) -> None:
        self._before = [_Before.of(memory, versions) for memory in memories]
        self._overwritten = overwritten
        self._same: list[_Same] = []
        self._given: list[_Given] = []
        self._placed: list[_Placed] = []
        self._left: list[tuple[SyncedMemory, Head]] = []
        self._written: list[SyncedMemory] = []
        self._exchanged: list[tuple[DeviceSide, Array]] = []

    def leave(self) -> bool:
        """Note how the memories are now, after the calls.

        Returns:
            Whether calls may be made again: all memories were there in the pass before, none was
            empty that was read, none has contents that are made only when they are read, and none
            has come to lie elsewhere but for an exchange of arrays.
        """
        for one in self._before:
            memory, head, placed = one.memory, one.head, one.placed
            written, newest = memory.version != one.version, memory._head
            if memory._initial is not None or (head is Head.UNINITIALIZED and not written):
                if newest is head:
                    continue  # not touched at all
                return False
            free = written and memory.serial in self._overwritten
            if one.known is None and not free:
                return False
            if placed.host_side.array is not placed.host or placed.side.layout is not placed.layout:
                return False
            fresh = one.known != one.version
            if not (free or fresh or written) and newest is head:
                self._same.append(_Same(memory, placed.side, placed.array, head, one.version))
                continue
            self._placed.append(placed)
            if placed.side.array is not placed.array:
                self._exchanged.append((placed.side, placed.side.array))
            if not free:
                self._given.append(_Given(memory, head, fresh))
            self._left.append((memory, newest))
            if written:
                self._written.append(memory)
        self._before = []
        return True

    def again(self, versions: Mapping[int, int]) -> bool:
        """Whether the memories are as they were found.

        Args:
            versions: Those of the memories after the pass before, by serial.
        """
        for memory, side, array, head, version in self._same:
            if memory.version != version or memory._head is not head or side.array is not array:
                return False
        for host_side, host, side, array, layout in self._placed:
            if host_side.array is not host or side.array is not array or side.layout is not layout:
                return False
        for memory, head, fresh in self._given:
            if memory._head is not head:
                return False
            if not fresh and memory.version != versions[memory.serial]:
                return False
        return True

    def leave_again(self, versions: dict[int, int]) -> None:
        """Let the memories be as the calls leave them, which are made again now.

        Args:
            versions: Is given those of the memories.
        """
        for memory, newest in self._left:
            memory._head = newest
        for memory in self._written:
            memory._initial = None
            memory.version += 1
        for side, array in self._exchanged:
            side.array = array
        for memory, _, _ in self._given:
            versions[memory.serial] = memory.version
