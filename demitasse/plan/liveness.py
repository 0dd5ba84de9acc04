"""Liveness: the blobs of a net that are kept, and the buffers that other blobs share.

In a net that only runs forward, the *live range* of a blob's data begins at the layer that writes
the blob. The range ends at the last layer that reads the blob. In a net that is trained, all data
is kept for the backward pass. A gradient lives from the first layer that writes it to the layer
that reads it. Memories whose live ranges do not overlap are assigned to one slot, as a compiler
assigns variables to registers; the largest first, so that few slots are large.

Source: Y. Pisarchyk and J. Lee, *Efficient Memory Management for Deep Neural Net Inference*, 2020,
"greedy by size for shared objects".
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from demitasse.backends.ops import Conv
from demitasse.blob import Blob, VersionCounter
from demitasse.core.frozen_struct import FrozenStruct
from demitasse.core.text import suggestion
from demitasse.errors import ErrorCode, NetError
from demitasse.layers.metadata import layer_metadata
from demitasse.memory import SyncedMemory
from demitasse.memory.arena import Arena, Assignment, Slot
from demitasse.plan.planned_layer import LayerBinding

Keep = str | Iterable[str] | None
"""Names of blobs to keep; "outputs" for the net's outputs; None for all blobs."""


def names_in(keep: Keep) -> frozenset[str] | None:
    """Return the names in ``keep``, or None where all blobs are kept."""
    if keep is None:
        return None
    return frozenset(() if keep == "outputs" else [keep] if isinstance(keep, str) else keep)


def kept_names(keep: Keep, known: Sequence[str]) -> frozenset[str] | None:
    """Return the names in ``keep``, None for all; raise NetError if there is no such blob."""
    names = names_in(keep)
    unknown = sorted(names - set(known)) if names is not None else []
    if unknown:
        message = (
            f"got keep_blobs={unknown}, expected names of blobs"
            f"{suggestion(unknown[0], known)}; the net has {', '.join(known)}"
        )
        raise NetError(message, code=ErrorCode.UNKNOWN, field="keep_blobs", got=unknown)
    return names


class Access(FrozenStruct):
    """The names and memories that one layer reads and writes in a pass.

    The memories of an ``opaque`` layer cannot be shared: the layer may keep or replace them.
    """

    layer: int
    label: str
    reads: tuple[tuple[str, SyncedMemory], ...]
    writes: tuple[tuple[str, SyncedMemory], ...]
    opaque: bool

    @property
    def all(self) -> tuple[tuple[str, SyncedMemory], ...]:
        """Names and memories that the layer reads or writes."""
        return self.reads + self.writes


@dataclass
class LiveRange:
    """The layers from the first to the last access of a memory.

    Times are counted in layers along the pass. ``fusion_internal`` is True for a blob between two
    convolutions that may run as one, which then is never written.
    """

    memory: SyncedMemory
    name: str
    start: int
    end: int
    fusion_internal: bool = False


class Occupancy:
    """A slot while slots are being assigned.

    Memories that may never be written (``fusion_internal``) have separate slots, so that the others
    are reused soon, while they are still in a cache.
    """

    def __init__(self, slot: Slot, *, fusion_internal: bool) -> None:
        self.slot, self._fusion_internal = slot, fusion_internal
        self._times: list[tuple[int, int]] = []  # reserved times, in order

    def try_reserve(self, live: LiveRange) -> bool:
        """Reserve the slot for a live range, if it is free then; return whether it was."""
        times = (live.start, live.end)
        place = bisect_left(self._times, times)
        before, after = self._times[:place][-1:], self._times[place : place + 1]
        if any(end >= live.start for _, end in before) or any(s <= live.end for s, _ in after):
            return False
        if live.fusion_internal != self._fusion_internal:
            return False
        self._times.insert(place, times)
        return True


def accesses(bindings: Sequence[LayerBinding], *, backward: bool) -> list[Access]:
    """Return how a forward pass accesses the data, or a backward pass the gradients, in order."""
    found = []
    for index, binding in enumerate(bindings):
        if not backward:
            reads = tuple((blob.name, blob.data_memory) for blob in binding.bottom)
            writes = tuple((blob.name, blob.data_memory) for blob in binding.top)
        elif binding.backward:
            reads = tuple((blob.name, blob.diff_memory) for blob in binding.top)
            wanted = zip(binding.bottom, binding.propagate_down, strict=True)
            writes = tuple((blob.name, blob.diff_memory) for blob, down in wanted if down)
        else:
            continue
        found.append(Access(index, binding.label, reads, writes, _is_opaque(binding)))
    return found[::-1] if backward else found


def _is_opaque(binding: LayerBinding) -> bool:
    """Return whether a layer may keep or replace its blobs' memories, as data and Python layers."""
    return not binding.bottom or layer_metadata(binding.layer.type).opaque


def elidable_blobs(bindings: Sequence[LayerBinding], kept: Iterable[Blob]) -> frozenset[int]:
    """Return the ids of blobs that a backend may leave out in a net that only runs forward.

    One layer writes such a blob, one other layer reads it, and it is not kept.
    """
    readers = Counter(id(b) for binding in bindings for b in binding.bottom if b not in binding.top)
    seen = {id(blob) for blob in kept}
    for binding in bindings:
        if _is_opaque(binding):
            seen |= {id(blob) for blob in binding.top}
    return frozenset(b for b, count in readers.items() if count == 1) - seen


class Allocator:
    """Assigns the memories of a net that need not be kept to the slots of an arena.

    The memories are those of the data in a forward pass, or of the gradients in a backward pass.
    ``changes`` counts the changes of the blobs' shapes and memories.
    """

    def __init__(
        self,
        bindings: Sequence[LayerBinding],
        kept: Iterable[Blob],
        changes: VersionCounter,
        *,
        backward: bool = False,
    ) -> None:
        self.arena, self.backward = Arena(), backward
        self._bindings, self._kept = bindings, list(kept)
        self._accesses = accesses(bindings, backward=backward)
        self._changes, self._seen = changes, -1
        self._assigned: dict[int, int] = {}  # sizes, by serials
        self._slots: dict[int, Slot] = {}  # by serials
        self._checked: set[tuple[int, int]] = set()  # ranges of layers, since the last change

    def update(self, fusion_ends: Callable[[], Sequence[int]]) -> None:
        """Assign slots again, if shapes or memories have changed since the last call.

        ``fusion_ends`` returns, for each layer, the last of those that may run as one with it.
        """
        if self._seen != self._changes.number:
            number, before = self._changes.number, self._memories()
            self._checked.clear()
            self._accesses = accesses(self._bindings, backward=self.backward)
            ranges = self._live_ranges(self._accesses, fusion_ends())
            ranges.sort(key=lambda live: live.start)
            assigned = {live.memory.serial: live.memory.size for live in ranges}
            if assigned != self._assigned:
                self._assigned = {}
                _release(before)
                self._assign(ranges)
                self._assigned = assigned
            else:
                for live in ranges:
                    live.memory.move(self._assignment(live))
            self._seen = number  # last: an interrupted update is repeated
        for slot in self.arena.slots:
            if slot.outgrown:
                for memory in self._memories():
                    place = memory.assignment
                    if place is not None and place.slot is slot:
                        memory.assign(place)
                slot.clear()

    def release(self) -> None:
        """Give every memory its own buffers again."""
        _release(self._memories())

    def check_reads(self, first: int, last: int) -> None:
        """Raise NetError if one of the layers reads a buffer that only an earlier pass wrote."""
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
                        f"{access.label} reads blob {name!r}, which was not kept between "
                        f"passes; start further up, or name it in keep_blobs=[{name!r}, ...]"
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
                # read before any layer writes it: set by the caller, as the weight of a loss
                preset = new and any(memory is read for _, read in access.reads)
                if preset or access.opaque or memory.viewed:
                    kept.add(memory.serial)
                live = ranges.setdefault(memory.serial, LiveRange(memory, name, start, end))
                live.end = max(live.end, end)
                lasts[memory.serial] = max(lasts.get(memory.serial, 0), access.layer)
        if not self.backward:
            for serial, live in ranges.items():
                first, last = (self._bindings[i].layer.op for i in (live.start, lasts[serial]))
                pair = isinstance(first, Conv) and isinstance(last, Conv)
                live.fusion_internal = pair and lasts[serial] <= together[live.start]
        return [live for serial, live in ranges.items() if serial not in kept]

    def _times(self, found: Sequence[Access], together: Sequence[int]) -> list[tuple[int, int]]:
        """Return start and end of each access; layers that run as one have the same end."""
        layers = [access.layer for access in found]
        if not self.backward:
            return [(layer, together[layer]) for layer in layers]
        last = len(together) - 1
        return [(last - layer, last - bisect_left(together, layer)) for layer in layers]

    def _assign(self, ranges: Sequence[LiveRange]) -> None:
        occupied: list[Occupancy] = []
        slots = self._slots = {}
        # the largest first; a slot that comes later is no larger
        for live in sorted(ranges, key=lambda live: live.memory.size, reverse=True):
            chosen = next((one for one in reversed(occupied) if one.try_reserve(live)), None)
            if chosen is None:
                slot = Slot(expected=live.memory.size)
                chosen = Occupancy(slot, fusion_internal=live.fusion_internal)
                chosen.try_reserve(live)
                occupied.append(chosen)
            slots[live.memory.serial] = chosen.slot
        for live in ranges:
            live.memory.assign(self._assignment(live))
        self.arena.slots = [one.slot for one in occupied]

    def _assignment(self, live: LiveRange) -> Assignment:
        return Assignment(self.arena, self._slots[live.memory.serial], live.name)


def _release(memories: Iterable[SyncedMemory]) -> None:
    for memory in memories:
        if memory.assignment is not None:
            memory.assign(None)
