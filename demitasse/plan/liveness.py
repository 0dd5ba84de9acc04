"""Which blobs of a net are kept, and which of the other blobs' memories share a buffer.

In a net that only runs forward, the data of a blob that is not kept is needed from the layer that
writes it to the last layer that reads it: that is its *live range*. In a net that is trained all
data is kept, for the backward pass reads it, but a gradient lives only from the first layer that
writes it to the layer that reads it. Memories whose live ranges do not overlap are assigned to one
slot, as a compiler assigns variables to registers; the largest first, so that few slots are large.

Source: Y. Pisarchyk and J. Lee, *Efficient Memory Management for Deep Neural Net Inference*, 2020,
"greedy by size for shared objects".
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from demitasse.backends.ops import Concat, Conv
from demitasse.blob import Blob, Changes
from demitasse.core.frozen_struct import FrozenStruct
from demitasse.core.text import suggestion
from demitasse.errors import ErrorCode, NetError
from demitasse.layers.metadata import layer_metadata
from demitasse.memory import SyncedMemory
from demitasse.memory.arena import Arena, Assignment, Slot
from demitasse.plan import Place
from demitasse.plan.joining import Joined, find_homes

__all__ = ["Allocator", "Keep", "bytes_taken", "hidden_blobs", "kept_names", "names_in"]

Keep = str | Iterable[str] | None
"""Names of blobs to keep; "outputs" for those nobody reads; None for all blobs."""


def names_in(keep: Keep) -> frozenset[str] | None:
    """Return the names in ``keep``, or None where all blobs are kept."""
    if keep is None:
        return None
    return frozenset(() if keep == "outputs" else [keep] if isinstance(keep, str) else keep)


def kept_names(keep: Keep, known: Sequence[str]) -> frozenset[str] | None:
    """Return the names in ``keep``, or None where all blobs are kept.

    Raises:
        NetError: There is no such blob.
    """
    names = names_in(keep)
    if names is None:
        return None
    unknown = sorted(names - set(known))
    if unknown:
        message = (
            f"keep= names {', '.join(unknown)}{suggestion(unknown[0], known)}; "
            f"the net has {', '.join(known)}"
        )
        raise NetError(message, code=ErrorCode.UNKNOWN, field="keep", got=unknown)
    return names


class Access(FrozenStruct):
    """The memories that one layer accesses in a pass.

    Attributes:
        layer: Index of the layer.
        called: The layer as messages name it.
        reads: Names and memories that it reads.
        writes: Names and memories that it writes.
        opaque: Whether the layer may use its blobs in other ways than these, so that their
            memories cannot be shared.
    """

    layer: int
    called: str
    reads: tuple[tuple[str, SyncedMemory], ...]
    writes: tuple[tuple[str, SyncedMemory], ...]
    opaque: bool

    @property
    def all(self) -> tuple[tuple[str, SyncedMemory], ...]:
        """Names and memories that it reads or writes."""
        return self.reads + self.writes


@dataclass
class LiveRange:
    """From when to when a memory is needed.

    Attributes:
        memory: The memory.
        name: The blob's name.
        start: The first time it is accessed; times are counted in layers along the pass.
        end: The last time it is accessed.
        within: Whether it lies between two convolutions that may run as one, and so may never be
            written.
    """

    memory: SyncedMemory
    name: str
    start: int
    end: int
    within: bool = False


class Occupancy:
    """A slot while slots are being assigned.

    Args:
        slot: The slot.
        within: Whether it is for what may never be written. That is kept apart, so that the others
            are used again soon, while they are still in a cache.
    """

    def __init__(self, slot: Slot, *, within: bool) -> None:
        self.slot, self._within = slot, within
        self._times: list[tuple[int, int]] = []  # when it is occupied, in order

    def take(self, live: LiveRange) -> bool:
        """Occupy the slot for a live range, if it is free then; return whether it was."""
        times = (live.start, live.end)
        place = bisect_left(self._times, times)
        before, after = self._times[:place][-1:], self._times[place : place + 1]
        if any(end >= live.start for _, end in before) or any(s <= live.end for s, _ in after):
            return False
        if live.within != self._within:
            return False
        self._times.insert(place, times)
        return True


def accesses(places: Sequence[Place], *, backward: bool) -> list[Access]:
    """Return how a forward pass accesses the data, or a backward pass the gradients, in order."""
    if not backward:
        return [
            Access(
                index,
                place.called,
                tuple((blob.name, blob.data_memory) for blob in place.bottom),
                tuple((blob.name, blob.data_memory) for blob in place.top),
                _is_opaque(place),
            )
            for index, place in enumerate(places)
        ]
    return [
        Access(
            index,
            place.called,
            tuple((blob.name, blob.diff_memory) for blob in place.top),
            tuple(
                (blob.name, blob.diff_memory)
                for blob, wanted in zip(place.bottom, place.propagate_down, strict=True)
                if wanted
            ),
            _is_opaque(place),
        )
        for index, place in reversed(list(enumerate(places)))
        if place.backward
    ]


def _is_opaque(place: Place) -> bool:
    """Whether a layer may keep or change its blobs' memories at will, as data and Python layers."""
    return not place.bottom or layer_metadata(place.layer.type).opaque


def hidden_blobs(places: Sequence[Place], kept: Iterable[Blob]) -> frozenset[int]:
    """Return the ids of blobs that a backend need not compute at all in a net that runs forward.

    They are written by one layer, read by one other, and not kept.
    """
    readers = Counter(id(b) for place in places for b in place.bottom if b not in place.top)
    seen = {id(blob) for blob in kept}
    for place in places:
        if _is_opaque(place):
            seen |= {id(blob) for blob in place.top}
    return frozenset(b for b, count in readers.items() if count == 1) - seen


class Allocator:
    """Assigns the memories of a net that need not be kept to the slots of an arena.

    They are what one kind of pass writes: the data in a forward pass, or the gradients in a
    backward pass.

    Args:
        places: The layers with their blobs.
        kept: The blobs to keep.
        changes: Where the blobs note changes of their shapes and memories.
        backward: Whether it is the backward pass and the gradients; else the forward pass and the
            data.

    Attributes:
        arena: The slots.
        backward: As given.
    """

    def __init__(
        self,
        places: Sequence[Place],
        kept: Iterable[Blob],
        changes: Changes,
        *,
        backward: bool = False,
    ) -> None:
        self.arena, self.backward = Arena(), backward
        self._places, self._kept = places, list(kept)
        self._accesses = accesses(places, backward=backward)
        self._changes, self._seen = changes, -1
        self._joined: dict[int, Joined] = {}  # by serials
        self._assigned: dict[int, tuple[int, Joined | None]] = {}  # sizes and homes by serials
        self._checked: set[tuple[int, int]] = set()  # ranges of layers, since the last change

    def find_homes(self) -> None:
        """Let memories that a Concat joins know where in its top they may lie."""
        for memory in self._memories():  # some may have left the net
            memory.concat_slot = None
        if not any(isinstance(place.layer.op, Concat) for place in self._places):
            self._joined = {}
            return
        present = accesses(self._places, backward=self.backward)
        ranges = self._live_ranges(present, range(len(self._places)))
        self._joined = find_homes(self._places, {live.memory.serial for live in ranges})
        for live in ranges:
            joined = self._joined.get(live.memory.serial)
            live.memory.concat_slot = None if joined is None else joined.home

    def update(self, runs: Callable[[], Sequence[int]]) -> None:
        """Assign slots anew, if shapes or memories have changed since the last time.

        Args:
            runs: Returns, for each layer, the last of those that may be computed as one with it.
        """
        if self._seen != self._changes.number:
            number, before = self._changes.number, self._memories()
            self._checked.clear()
            self._accesses = accesses(self._places, backward=self.backward)
            ranges = self._together(self._live_ranges(self._accesses, runs()))
            assigned = {
                live.memory.serial: (live.memory.size, self._joined.get(live.memory.serial))
                for live in ranges
            }
            if assigned != self._assigned:
                self._assigned = {}
                _release(before)
                self._assign(ranges)
                self._assigned = assigned
            self._seen = number  # when all is done: what is interrupted is done again
        for slot in self.arena.slots:
            if slot.outgrown:
                for memory in self._memories():
                    place = memory.assignment
                    if place is not None and (place.slot is slot or place.parent_slot is slot):
                        memory.assign(place)
                slot.clear()

    def release(self) -> None:
        """Give every memory buffers of its own again."""
        _release(self._memories())
        for memory in self._memories():
            memory.concat_slot = None

    def check_reads(self, first: int, last: int) -> None:
        """Make sure that a pass from layer ``first`` to layer ``last`` finds what it reads.

        Raises:
            NetError: A layer reads what only an earlier pass could have left behind.
        """
        low, high = min(first, last), max(first, last)
        if (low, high) in self._checked:
            return
        written: set[int] = set()
        for access in self._accesses:
            if not low <= access.layer <= high:
                continue
            for name, memory in access.reads:
                if memory.serial in self._assigned and memory.serial not in written:
                    message = (
                        f"{access.called} reads blob {name!r}, which was not kept between "
                        f"passes; start further up, or name it in keep=[{name!r}, ...]"
                    )
                    raise NetError(message, code=ErrorCode.BAD_STATE, blob=name)
            written |= {memory.serial for _, memory in access.writes}
        self._checked.add((low, high))

    def _memories(self) -> list[SyncedMemory]:
        return [memory for access in self._accesses for _, memory in access.all]

    def _live_ranges(self, found: Sequence[Access], together: Sequence[int]) -> list[LiveRange]:
        """Return the live ranges of memories that may share, by the time they start."""
        ranges: dict[int, LiveRange] = {}
        lasts: dict[int, int] = {}
        memories = [b.diff_memory if self.backward else b.data_memory for b in self._kept]
        kept = {memory.serial for memory in memories}
        times = self._times(found, together)
        for access, (start, end) in zip(found, times, strict=True):
            for name, memory in access.all:
                new = memory.serial not in ranges
                # read before any layer writes it: set from outside, as a loss's weight is
                given = new and any(memory is read for _, read in access.reads)
                if given or access.opaque or memory.viewed:
                    kept.add(memory.serial)
                live = ranges.setdefault(memory.serial, LiveRange(memory, name, start, end))
                live.end = max(live.end, end)
                lasts[memory.serial] = max(lasts.get(memory.serial, 0), access.layer)
        if not self.backward:
            for serial, live in ranges.items():
                first, last = (self._places[i].layer.op for i in (live.start, lasts[serial]))
                pair = isinstance(first, Conv) and isinstance(last, Conv)
                live.within = pair and lasts[serial] <= together[live.start]
        return [live for serial, live in ranges.items() if serial not in kept]

    def _together(self, ranges: list[LiveRange]) -> list[LiveRange]:
        """Return live ranges by their starts; others may lie in a memory before it is written."""
        known = {live.memory.serial: live for live in ranges}
        for live in ranges:
            joined = self._joined.get(live.memory.serial)
            root = known.get(joined.root) if joined else None
            if root is not None:
                root.start, root.end = min(root.start, live.start), max(root.end, live.end)
        return sorted(ranges, key=lambda live: live.start)

    def _times(self, found: Sequence[Access], together: Sequence[int]) -> list[tuple[int, int]]:
        """Return when each access starts and ends; layers that run as one end together."""
        layers = [access.layer for access in found]
        if not self.backward:
            return [(layer, together[layer]) for layer in layers]
        last = len(together) - 1
        return [(last - layer, last - bisect_left(together, layer)) for layer in layers]

    def _assign(self, ranges: Sequence[LiveRange]) -> None:
        occupied: list[Occupancy] = []
        slots: dict[int, Slot] = {}
        # the largest first; a slot that comes later is no larger
        for live in sorted(ranges, key=self._needed, reverse=True):
            chosen = next((one for one in reversed(occupied) if one.take(live)), None)
            if chosen is None:
                slot = Slot(expected=self._needed(live))
                chosen = Occupancy(slot, within=live.within)
                chosen.take(live)
                occupied.append(chosen)
            slots[live.memory.serial] = chosen.slot
        for live in ranges:
            live.memory.assign(self._assignment(live, slots))
        self.arena.slots = [one.slot for one in occupied]

    def _needed(self, live: LiveRange) -> int:
        """Return the elements of a place of its own: none where it may lie in another memory.

        Where no Step writes it there, its slot grows.
        """
        joined = self._joined.get(live.memory.serial)
        elsewhere = joined is not None and joined.root != live.memory.serial
        return 0 if elsewhere else live.memory.size

    def _assignment(self, live: LiveRange, slots: Mapping[int, Slot]) -> Assignment:
        slot, joined = slots[live.memory.serial], self._joined.get(live.memory.serial)
        if joined is None or joined.root not in slots:
            return Assignment(self.arena, slot, live.name)
        host = None if joined.root == live.memory.serial else slots[joined.root]
        return Assignment(self.arena, slot, live.name, joined.home, host)


def bytes_taken(memories: Iterable[SyncedMemory]) -> int:
    """Return the bytes that some memories take at present; shared buffers count once."""
    own: dict[int, int] = {}
    arenas: dict[int, Arena] = {}
    for memory in memories:
        if memory.assignment is None:
            own[memory.serial] = memory.allocated
        else:
            arenas[id(memory.assignment.arena)] = memory.assignment.arena
    return sum(own.values()) + sum(arena.nbytes for arena in arenas.values())


def _release(memories: Iterable[SyncedMemory]) -> None:
    for memory in memories:
        if memory.assignment is not None:
            memory.assign(None)
