"""Replay checks: the memory states that recorded work requires, and the states that it leaves.

``ReplayCheck`` is for calls of the host. The right calls depend on where the contents of a memory
are, and on which side is newest. They may also depend on unchanged contents, of which Steps cache
copies in other layouts. ``LaunchCheck`` is for work of a device, which a graph launches: its inputs
are copied to the device before a launch, and may have any contents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from demitasse.backends.arrays import Array, PrivateLayout
from demitasse.memory.sides import DeviceSide, HostSide
from demitasse.memory.synced import DEVICE_HEADS, Head, SyncedMemory

__all__ = ["LaunchCheck", "ReplayCheck"]


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
        layout: Its private layout, if other work between the passes may choose another; otherwise
            None.
    """

    memory: SyncedMemory
    head: Head
    written: bool
    exchanged: Array | None
    layout: PrivateLayout | None = None


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
        self._overwritten_sides: list[Placement] = []
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
            if host_side.array is not host:
                return False
            if free and _in_buffer(side, side.array, side.layout):
                self._overwritten_sides.append(Placement.of(memory))
                self._effects.append(Effect(memory, newest, written, None, side.layout))
                continue
            if side.layout is not layout:
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
        for host_side, host, side, array, layout in self._overwritten_sides:
            if host_side.array is not host or not _in_buffer(side, array, layout):
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
        for memory, head, written, exchanged, layout in self._effects:
            memory.state = head
            if written:
                memory.initializer = None
                memory.version += 1
            if exchanged is not None:
                memory.device_side.array = exchanged
            elif layout is not None:
                memory.device_side.use(layout)
        for memory, _, _ in self._inputs:
            versions[memory.serial] = memory.version


def _in_buffer(side: DeviceSide, array: Array | None, layout: PrivateLayout | None) -> bool:
    """Return whether an array is that of a layout in the present buffer, or there is none."""
    return array is (None if layout is None else side.views.get(layout))


class LaunchCheck:
    """Compares memories with their states before a captured launch, and applies its effects.

    Args:
        memories: All memories that the work may use; those without an array on the device are left
            out. Contents that are newest on the host are copied to the device.
    """

    def __init__(self, memories: Sequence[SyncedMemory]) -> None:
        self._used = [memory for memory in memories if memory.device_array is not None]
        for memory in self._used:
            if memory.head is Head.HEAD_AT_CPU:
                memory.gpu_data()
        self._before = [(memory.head, memory.version) for memory in self._used]
        self._inputs = [memory for memory in self._used if memory.head in DEVICE_HEADS]
        self._pinned: list[tuple[SyncedMemory, Array]] = []
        self._cleared: list[SyncedMemory] = []
        self._effects: list[tuple[SyncedMemory, Head]] = []

    def record_effects(self) -> None:
        """Record the present states, after the work was captured."""
        self._pinned = [(memory, memory.device_array) for memory in self._used]
        for memory, (head, version) in zip(self._used, self._before, strict=True):
            written = memory.version != version
            if not written and memory.head is head:
                continue
            if head is Head.UNINITIALIZED:
                self._cleared.append(memory)
            # a memory that was cleared, and is only read, has zeros on the device then
            self._effects.append((memory, memory.head if written else Head.HEAD_AT_GPU))

    def matches(self) -> bool:
        """Return whether all arrays are in place, and memories cleared that were cleared."""
        return all(memory.device_array is array for memory, array in self._pinned) and all(
            memory.cleared for memory in self._cleared
        )

    def prepare(self) -> None:
        """Copy inputs that are newest on the host to the device."""
        for memory in self._inputs:
            if memory.head not in DEVICE_HEADS:
                memory.gpu_data()

    def order_after(self, where: object) -> None:
        """Order the work after the earlier work on all memories.

        Args:
            where: The queue of the work, as returned by the backend's ``order_after``.
        """
        for memory in self._used:
            memory.order_after(where)

    def apply_effects(self) -> None:
        """Set the memories to the states after the work, which has been launched."""
        for memory, head in self._effects:
            memory.mark_written(head)
