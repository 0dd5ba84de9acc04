"""Which blobs of a net are kept, and whose buffers the others share.

In a net that only runs forward, a blob that is not kept needs memory from the layer that writes it
to the last that reads it. In a net that is trained all data is kept, for the backward pass reads
it; but a gradient is needed only from the first layer that writes it to the one that reads it.
Memories whose times do not meet use one buffer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from demitasse.blob import Blob, epoch
from demitasse.errors import NetError
from demitasse.memory import SyncedMemory
from demitasse.memory.arena import House, Lodging, Room
from demitasse.plan import Place

__all__ = ["Keep", "Reuse", "bytes_taken", "hidden_blobs", "kept_names"]

Keep = str | Iterable[str] | None
"""Names of blobs to keep; "outputs" for those nobody reads; None for all blobs."""


def kept_names(keep: Keep, known: Sequence[str]) -> frozenset[str] | None:
    """Return the names in ``keep``, or None where all blobs are kept.

    Raises:
        NetError: There is no such blob.
    """
    if keep is None:
        return None
    names = frozenset(() if keep == "outputs" else [keep] if isinstance(keep, str) else keep)
    unknown = sorted(names - set(known))
    if unknown:
        message = f"keep= names {', '.join(unknown)}; the net has {', '.join(known)}"
        raise NetError(message)
    return names


@dataclass(frozen=True)
class Visit:
    """What a pass does at one layer.

    Attributes:
        layer: Number of the layer.
        called: The layer as messages name it.
        reads: Names and memories it reads.
        writes: Names and memories it writes.
        secret: Whether what it does to them is not known.
    """

    layer: int
    called: str
    reads: tuple[tuple[str, SyncedMemory], ...]
    writes: tuple[tuple[str, SyncedMemory], ...]
    secret: bool


def _secret(place: Place) -> bool:
    """Whether a layer may do with its blobs' memories what it likes, as data and Python layers."""
    return not place.bottom or place.layer.type == "Python"


def visits(places: Sequence[Place], *, backward: bool) -> list[Visit]:
    """Return what a forward pass does to the data, or a backward pass to the gradients."""
    if not backward:
        return [
            Visit(
                index,
                place.called,
                tuple((blob.name, blob.data_memory) for blob in place.bottom),
                tuple((blob.name, blob.data_memory) for blob in place.top),
                _secret(place),
            )
            for index, place in enumerate(places)
        ]
    return [
        Visit(
            index,
            place.called,
            tuple((blob.name, blob.diff_memory) for blob in place.top),
            tuple(
                (blob.name, blob.diff_memory)
                for blob, wanted in zip(place.bottom, place.propagate_down, strict=True)
                if wanted
            ),
            _secret(place),
        )
        for index, place in reversed(list(enumerate(places)))
        if place.backward
    ]


def hidden_blobs(places: Sequence[Place], kept: Iterable[Blob]) -> frozenset[int]:
    """Return the ids of blobs that a backend need not compute at all in a net that runs forward.

    They are written by one layer, read by one other, and not kept.
    """
    readers = Counter(id(b) for place in places for b in place.bottom if b not in place.top)
    seen = {id(blob) for blob in kept}
    for place in places:
        if _secret(place):
            seen |= {id(blob) for blob in place.top}
    return frozenset(b for b, count in readers.items() if count == 1) - seen


@dataclass
class Stay:
    """The time in which a memory is needed, both ends included."""

    memory: SyncedMemory
    name: str
    first: int
    last: int


@dataclass
class Booking:
    """A room, its size so far, and the last time that it is taken for."""

    room: Room
    size: int = 0
    until: int = -1


class Reuse:
    """Buffers for what one kind of pass writes and nobody keeps.

    Args:
        places: The layers with their blobs.
        kept: The blobs to keep.
        backward: Whether it is the backward pass and the gradients; else the forward pass and the
            data.

    Attributes:
        house: The buffers.
        backward: As given.
    """

    def __init__(
        self, places: Sequence[Place], kept: Iterable[Blob], *, backward: bool = False
    ) -> None:
        self.house, self.backward = House(), backward
        self._places, self._kept = places, list(kept)
        self._visits = visits(places, backward=backward)
        self._epoch = -1
        self._lodged: dict[int, int] = {}  # sizes by serials

    def settle(self, runs: Callable[[], Sequence[int]]) -> None:
        """Assign buffers, where shapes or memories have changed.

        Args:
            runs: Returns, for each layer, the last of those that may be computed as one with it.
        """
        if self._epoch != epoch.value:
            self._epoch = epoch.value
            before = self._memories()
            self._visits = visits(self._places, backward=self.backward)
            stays = self._stays(runs())
            lodged = {stay.memory.serial: stay.memory.size for stay in stays}
            if lodged != self._lodged:
                _dissolve(before)
                self._assign(stays)
                self._lodged = lodged
        for room in self.house.rooms:
            if room.outgrown:
                for memory in self._memories():
                    if memory.lodging is not None and memory.lodging.room is room:
                        memory.lodge(memory.lodging)
                room.clear()

    def dissolve(self) -> None:
        """Give every memory its own buffers again."""
        _dissolve(self._memories())

    def needs(self, first: int, last: int) -> None:
        """Make sure that a pass from layer ``first`` to layer ``last`` finds what it reads.

        Raises:
            NetError: A layer reads what only an earlier pass could have left behind.
        """
        low, high = min(first, last), max(first, last)
        written: set[int] = set()
        for visit in self._visits:
            if not low <= visit.layer <= high:
                continue
            for name, memory in visit.reads:
                if memory.serial in self._lodged and memory.serial not in written:
                    message = (
                        f"{visit.called} reads blob {name!r}, which was not kept between "
                        f"passes; start further up, or name it in keep=[{name!r}, ...]"
                    )
                    raise NetError(message)
            written |= {memory.serial for _, memory in visit.writes}

    def _memories(self) -> list[SyncedMemory]:
        return [memory for visit in self._visits for _, memory in (*visit.reads, *visit.writes)]

    def _stays(self, together: Sequence[int]) -> list[Stay]:
        """Return the memories that may share, in the order in which they are first used."""
        stays: dict[int, Stay] = {}
        memories = [b.diff_memory if self.backward else b.data_memory for b in self._kept]
        kept = {memory.serial for memory in memories}
        times = self._times(together)
        for visit, (begin, end) in zip(self._visits, times, strict=True):
            for name, memory in (*visit.reads, *visit.writes):
                fresh = memory.serial not in stays
                # what is read before anybody writes it comes from elsewhere: a loss's weight, zeros
                given = fresh and any(memory is read for _, read in visit.reads)
                if given or visit.secret or memory.leased:
                    kept.add(memory.serial)
                stay = stays.setdefault(memory.serial, Stay(memory, name, begin, end))
                stay.last = max(stay.last, end)
        return [stay for serial, stay in stays.items() if serial not in kept]

    def _times(self, together: Sequence[int]) -> list[tuple[int, int]]:
        """Return when each visit begins and ends, where layers that run as one end together."""
        numbers = [visit.layer for visit in self._visits]
        if not self.backward:
            return [(number, together[number]) for number in numbers]
        last = len(together) - 1
        return [(last - number, last - bisect_left(together, number)) for number in numbers]

    def _assign(self, stays: Sequence[Stay]) -> None:
        taken: list[Booking] = []
        for stay in stays:
            size = stay.memory.size
            free = [booking for booking in taken if booking.until < stay.first]
            # the smallest that is large enough, or else the largest
            free.sort(key=lambda booking: (booking.size < size, abs(booking.size - size)))
            booking = free[0] if free else Booking(Room())
            if not free:
                taken.append(booking)
            booking.size, booking.until = max(booking.size, size), stay.last
            stay.memory.lodge(Lodging(self.house, booking.room, stay.name))
        self.house.rooms = [booking.room for booking in taken]


def bytes_taken(memories: Iterable[SyncedMemory]) -> int:
    """Return what some memories take at present, and the buffers that several of them share."""
    own: dict[int, int] = {}
    houses: dict[int, House] = {}
    for memory in memories:
        if memory.lodging is None:
            own[memory.serial] = memory.allocated
        else:
            houses[id(memory.lodging.house)] = memory.lodging.house
    return sum(own.values()) + sum(house.nbytes for house in houses.values())


def _dissolve(memories: Iterable[SyncedMemory]) -> None:
    for memory in memories:
        if memory.lodging is not None:
            memory.lodge(None)
