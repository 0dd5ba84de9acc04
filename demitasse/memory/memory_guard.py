"""Memory guard: the memory states that recorded work requires, and the states that it leaves.

Recorded work reads and writes the arrays that it was recorded with. On the host it also requires
that the same side of each memory is the newest. Memories that no code writes between replays must
be unchanged: Steps cache copies of them in other layouts. On a device that queues its work, inputs
may have any contents, and are copied to the device before a replay.

Between two replays of one recording hardly a memory changes. A ``Watch`` tells whether any has. If
none has, the guard skips those: on the host, memories that the work only reads; on a device that
queues its work, all but *volatile* ones, inputs and outputs, which others write and read.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from demitasse.backends.arrays import Array, PrivateLayout
from demitasse.backends.recording import NotRecorded
from demitasse.memory.sides import DeviceSide, HostSide
from demitasse.memory.synced import DEVICE_HEADS, UNWATCHED, Head, SyncedMemory, Watch

Unchanged = tuple[SyncedMemory, DeviceSide, Array | None, Head, int]
"""A memory that is only read, its device side, array, newest side and version.

The memory must have the contents of the previous run.
"""

Input = tuple[SyncedMemory, Head, bool]
"""A memory that is read before it is written, its newest side then, and True if rewritten.

Other code rewrites the memory between runs; otherwise the contents are those of the previous run.
"""


class Effect(NamedTuple):
    """State in which the work leaves a memory; ``exchanged`` is its new private array, or None."""

    memory: SyncedMemory
    head: Head
    written: bool
    exchanged: Array | None


class MemoryGuard:
    """Compares memories with their states before some work, and applies the effects of the work.

    Args:
        memories: All memories that the work may use. On a device that queues its work, those
            without an array there are left out, and contents that are newest on the host are
            copied to the device.
        versions: Versions of the memories after the previous run, by serial; updated by
            ``apply``. None for work of a device that queues.
        overwritten: Serials of memories whose previous contents are never read.
        volatile: Serials of memories that others write or read between replays, for work of a
            device that queues.
    """

    def __init__(
        self, memories: Iterable[SyncedMemory], versions: dict[int, int] | None = None,
        overwritten: frozenset[int] = frozenset(), volatile: frozenset[int] = frozenset(),
    ) -> None:  # fmt: skip
        self._queued = versions is None
        self._versions = {} if versions is None else versions
        self._overwritten, self._volatile = overwritten, volatile
        self._watches: list[Watch] = []
        self._on_device: list[SyncedMemory] = []
        self._last_use: object = None
        if self._queued:
            memories = self._on_device = [m for m in memories if m.device_array is not None]
            for memory in memories:
                if memory.head is Head.HEAD_AT_CPU:
                    memory.to_layout(memory.device_side.layout)
        self._before = [
            (m, m.state, m.version, m.host_side.array, m.device_side.array, m.device_side.layout)
            for m in memories
        ]
        self._unchanged: list[Unchanged] = []
        self._pinned: list[tuple[HostSide | DeviceSide, Array, PrivateLayout | None]] = []
        self._views: list[tuple[DeviceSide, Array, PrivateLayout]] = []
        self._inputs: list[Input] = []
        self._cleared: list[SyncedMemory] = []
        self._uploaded: list[SyncedMemory] = []
        self._effects: list[Effect] = []

    def record_effects(self, reused: Collection[tuple[int, int]] = ()) -> None:
        """Record the present states, after the work.

        Memories in ``reused``, by serial and version, must be unchanged at each replay.

        NotRecorded: a memory has lazy contents, was unknown in the previous run, was read on the
        host while empty, or has moved otherwise than by an exchange of private arrays.
        """
        for memory, head, version, host, array, layout in self._before:
            written, newest, side = memory.version != version, memory.state, memory.device_side
            changed = written or newest is not head
            if memory.lazy or (head is Head.UNINITIALIZED and not written):
                if not changed:
                    continue  # not used at all
                if memory.lazy or not self._queued:
                    raise _refusal(memory, "was read before it was written")
            free = written and memory.serial in self._overwritten
            stale = not self._queued and head is Head.HEAD_AT_CPU
            in_view = side.array is (side.layout and side.views.get(side.layout))
            in_view = in_view and (free or stale)
            if memory.host_side.array is not host or not (in_view or side.layout is layout):
                raise _refusal(memory, "has moved")
            rewritten = self._versions.get(memory.serial) != version
            rewritten = rewritten and (memory.serial, version) not in reused
            if not (self._queued or free):
                if memory.serial not in self._versions:
                    raise _refusal(memory, "is new")
                if not (rewritten or changed):
                    self._unchanged.append((memory, side, array, head, version))
                    continue
                self._inputs.append((memory, head, rewritten))
            if head is Head.UNINITIALIZED and not free:
                self._cleared.append(memory)
            elif self._queued:
                self._uploaded.append(memory)
            # unused are arrays that are absent before and after, and those of the host if queued
            if host is not None and not self._queued:
                self._pinned.append((memory.host_side, host, None))
            exchanged = None
            if in_view:
                if side.layout is not None:
                    self._views.append((side, side.array, side.layout))
            elif memory.device.backend.mutable and not (array is None and side.array is None):
                self._pinned.append((side, array, layout))
                exchanged = side.array if side.array is not array else None
            if changed:
                self._effects.append(Effect(memory, newest, written, exchanged))
        self._before = []
        self._watch()

    def _watch(self) -> None:
        """Watch all memories on the device but volatile ones, and list what concerns these."""
        loose = [memory for memory in self._on_device if memory.serial in self._volatile]
        sides = {id(memory.device_side) for memory in loose}
        self._loose = loose
        self._loose_pinned = [one for one in self._pinned if id(one[0]) in sides]
        self._loose_uploads = [memory for memory in self._uploaded if memory in loose]
        self._loose_effects = [one for one in self._effects if one.memory in loose]
        others = [one for one in self._effects if one.memory not in loose]
        self._written = [one.memory for one in others if one.written]
        if any(one.exchanged is not None for one in others):
            return
        watch = Watch()
        watched = [memory for memory in self._on_device if memory.serial not in self._volatile]
        for memory in watched or [one[0] for one in self._unchanged]:
            if memory.watch is UNWATCHED:
                memory.watch = watch
            if memory.watch not in self._watches:
                self._watches.append(memory.watch)

    @property
    def unchanged(self) -> bool:
        """True if watched memories are as the last replay of the work has left them."""
        for watch in self._watches:  # a loop is faster than all()
            if watch.guard is not self:
                return False
        return bool(self._watches)

    def forget(self) -> None:
        """Compare all memories before the next replay."""
        for watch in self._watches:
            watch.guard = None

    def order(self) -> None:
        """Order queued work of the device after the earlier work on all memories."""
        if self._on_device:
            self._order(self._on_device)

    def _order(self, memories: Iterable[SyncedMemory]) -> None:
        self._last_use = self._on_device[0].device.backend.order_after(self._last_use)
        for memory in memories:
            memory.order_after(self._last_use)

    def matches(self) -> bool:
        """Return True if all memories are in the states before the work."""
        known = self.unchanged
        if known and self._queued:
            return all(
                side.array is array and side.layout is layout
                for side, array, layout in self._loose_pinned
            )
        for memory, side, array, head, version in () if known else self._unchanged:
            if memory.version != version or memory.state is not head or side.array is not array:
                return False
        for pinned, array, layout in self._pinned:
            if pinned.array is not array or pinned.layout is not layout:
                return False
        for side, array, private in self._views:
            if side.views.get(private) is not array:
                return False
        versions = self._versions
        for memory, head, rewritten in self._inputs:
            if memory.state is not head:
                return False
            if not rewritten and memory.version != versions[memory.serial]:
                return False
        for memory in self._cleared:
            if not memory.cleared:
                return False
        on_device = self._on_device
        return not on_device or all(memory.device_array is not None for memory in on_device)

    def apply(self) -> None:
        """Copy inputs to the device, and set the states after the work, which is replayed now."""
        uploaded, effects = self._uploaded, self._effects
        known = self._queued and self.unchanged
        if known:
            uploaded, effects = self._loose_uploads, self._loose_effects
            for memory in self._written:
                memory.version += 1
        if self._on_device:
            for memory in uploaded:
                if memory.head not in DEVICE_HEADS:
                    memory.to_layout(memory.device_side.layout)
            last = self._last_use
            self._order(self._loose if known else self._on_device)
            if known and self._last_use is not last:  # on another stream than before
                self.order()
        for memory, head, written, exchanged in effects:
            memory.state, memory.watch.guard = head, None  # guards of other work know another
            if written:
                memory.initializer = None
                memory.version += 1
            if exchanged is not None:
                side = memory.device_side
                side.replace(exchanged, side.device, side.layout)
        for side, array, layout in self._views:  # layouts that other work may have replaced
            side.array, side.layout = array, layout
        for memory, _, _ in self._inputs:
            self._versions[memory.serial] = memory.version
        for watch in self._watches:
            watch.guard = self


def _refusal(memory: SyncedMemory, why: str) -> NotRecorded:
    return NotRecorded(f"the memory of {memory.label} {why}")
