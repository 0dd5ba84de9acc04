"""Replay check: the memory states that compiled calls require, and the states that they leave.

The right calls depend on where the contents of a memory are, and on which side is newest. They may
also depend on unchanged contents, of which Steps cache copies in other layouts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from demitasse.backends.arrays import Array, PrivateLayout
from demitasse.memory.sides import DeviceSide, HostSide
from demitasse.memory.synced import Head, SyncedMemory

__all__ = ["ReplayCheck"]


class Placement(NamedTuple):
    """The arrays of a memory."""

    host_side: HostSide
    host: Array | None
    device_side: DeviceSide
    array: Array | None
    layout: PrivateLayout | None

    @classmethod
    def of(cls, memory: SyncedMemory) -> Placement:
        """Return the present arrays of a memory."""
        host, side = memory.host_side, memory.device_side
        return cls(host, host.array, side, side.array, side.layout)


class BufferState(NamedTuple):
    """A memory before the calls.

    Attributes:
        memory: The memory.
        head: Its newest side.
        version: Its version.
        known: Its version after the previous pass; None if unknown.
        placement: Its arrays.
    """

    memory: SyncedMemory
    head: Head
    version: int
    known: int | None
    placement: Placement


class Unchanged(NamedTuple):
    """A memory that is only read, and must have the contents of the previous pass."""

    memory: SyncedMemory
    device_side: DeviceSide
    array: Array | None
    head: Head
    version: int


class Input(NamedTuple):
    """A memory that is read before it is written.

    Attributes:
        memory: The memory.
        head: The newest side that the calls require.
        rewritten: True if other code writes the memory between passes; otherwise it must have the
            contents of the previous pass.
    """

    memory: SyncedMemory
    head: Head
    rewritten: bool


class Effect(NamedTuple):
    """The state in which the calls leave a memory.

    Attributes:
        memory: The memory.
        head: Its newest side.
        written: True if the calls write the memory.
        exchanged: Its private array, if the calls exchange it for another; otherwise None.
    """

    memory: SyncedMemory
    head: Head
    written: bool
    exchanged: Array | None


class ReplayCheck:
    """Compares memories with their states before some calls, and applies the calls' effects.

    Args:
        memories: All memories that the calls may use.
        overwritten: Serials of memories whose previous contents are never read.
        versions: Versions of the memories after the previous pass, by serial.
    """

    def __init__(
        self,
        memories: Iterable[SyncedMemory],
        overwritten: frozenset[int],
        versions: Mapping[int, int],
    ) -> None:
        self._before = [
            BufferState(m, m.state, m.version, versions.get(m.serial), Placement.of(m))
            for m in memories
        ]
        self._overwritten = overwritten
        self._unchanged: list[Unchanged] = []
        self._inputs: list[Input] = []
        self._pinned: list[Placement] = []
        self._effects: list[Effect] = []

    def record_effects(self) -> bool:
        """Record the present states, after the calls.

        Returns:
            Whether a replay is possible. A memory prevents it that was unknown in the previous
            pass, was read while empty, has lazy contents, or has moved otherwise than by an
            exchange of private arrays.
        """
        for memory, head, version, known, placement in self._before:
            written, newest = memory.version != version, memory.state
            if memory.lazy or (head is Head.UNINITIALIZED and not written):
                if newest is head:
                    continue  # not used at all
                return False
            free = written and memory.serial in self._overwritten
            if known is None and not free:
                return False
            host_side, host, side, array, layout = placement
            if host_side.array is not host or side.layout is not layout:
                return False
            rewritten = known != version
            if not (free or rewritten or written) and newest is head:
                self._unchanged.append(Unchanged(memory, side, array, head, version))
                continue
            self._pinned.append(placement)
            if not free:
                self._inputs.append(Input(memory, head, rewritten))
            exchanged = side.array if side.array is not array else None
            self._effects.append(Effect(memory, newest, written, exchanged))
        self._before = []
        return True

    def matches(self, versions: Mapping[int, int]) -> bool:
        """Return whether all memories are in the states before the calls.

        Args:
            versions: Versions of the memories after the previous pass, by serial.
        """
        for memory, side, array, head, version in self._unchanged:
            if memory.version != version or memory.state is not head or side.array is not array:
                return False
        for host_side, host, side, array, layout in self._pinned:
            if host_side.array is not host or side.array is not array or side.layout is not layout:
                return False
        for memory, head, rewritten in self._inputs:
            if memory.state is not head:
                return False
            if not rewritten and memory.version != versions[memory.serial]:
                return False
        return True

    def apply_effects(self, versions: dict[int, int]) -> None:
        """Set the memories to the states after the calls, which are replayed now.

        Args:
            versions: Updated with the versions of the memories.
        """
        for memory, head, written, exchanged in self._effects:
            memory.state = head
            if written:
                memory.initializer = None
                memory.version += 1
            if exchanged is not None:
                memory.device_side.array = exchanged
        for memory, _, _ in self._inputs:
            versions[memory.serial] = memory.version
