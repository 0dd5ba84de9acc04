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
        self._overwritten = overwritten
        self._before = [(m, m._head, m.version, versions.get(m.serial)) for m in memories]
        self._same: list[_Same] = []
        self._given: list[_Given] = []
        self._placed: list[_Placed] = []
        self._left: list[tuple[SyncedMemory, Head]] = []
        self._written: list[SyncedMemory] = []
        self._versions: list[int] = []

    def leave(self) -> bool:
        """Note how the memories are now, after the calls.

        Returns:
            Whether calls may be made again: all memories were there in the pass before, none was
            empty that was read, and none has contents that are made only when they are read.
        """
        for memory, head, version, known in self._before:
            written, newest = memory.version != version, memory._head
            if memory._initial is not None or (head is Head.UNINITIALIZED and not written):
                if newest is head:
                    continue  # not touched at all
                return False
            free = written and memory.serial in self._overwritten
            if known is None and not free:
                return False
            fresh = known != version
            side = memory._device_side
            if not (free or fresh or written) and newest is head:
                self._same.append(_Same(memory, side, side.array, head, version))
                continue
            host_side = memory._host_side
            self._placed.append(_Placed(host_side, host_side.array, side, side.array, side.layout))
            if not free:
                self._given.append(_Given(memory, head, fresh))
                self._versions.append(memory.version)
            self._left.append((memory, newest))
            if written:
                self._written.append(memory)
        self._before = []
        return True

    def again(self) -> bool:
        """Whether the memories are as they were found."""
        for memory, side, array, head, version in self._same:
            if memory.version != version or memory._head is not head or side.array is not array:
                return False
        for host_side, host, side, array, layout in self._placed:
            if host_side.array is not host or side.array is not array or side.layout is not layout:
                return False
        for (memory, head, fresh), version in zip(self._given, self._versions, strict=True):
            if memory._head is not head or not (fresh or memory.version == version):
                return False
        return True

    def leave_again(self) -> None:
        """Let the memories be as the calls leave them, which are made again now."""
        for memory, newest in self._left:
            memory._head = newest
        for memory in self._written:
            memory._initial = None
            memory.version += 1
        self._versions = [memory.version for memory, _, _ in self._given]
