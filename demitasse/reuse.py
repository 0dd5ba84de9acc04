"""Which blobs of a net that only runs forward are kept, and whose buffers the others share.

A blob that is not kept needs memory from the layer that writes it to the last that reads it. Blobs
whose times do not meet use one buffer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from demitasse.blob import Blob, epoch
from demitasse.errors import ConfigError, NetError
from demitasse.lodging import House, Lodging, Room
from demitasse.memory import SyncedMemory
from demitasse.plan import Place

__all__ = ["Keep", "Reuse", "kept_names"]

Keep = str | Iterable[str] | None
"""Names of blobs to keep; "outputs" for those nobody reads; None for all blobs."""


def kept_names(keep: Keep, known: Sequence[str], phase: str) -> frozenset[str] | None:
    """Return the names in ``keep``, or None where all blobs are kept.

    Raises:
        ConfigError: The net is for training, whose backward pass reads all blobs.
        NetError: There is no such blob.
    """
    if keep is None:
        return None
    if phase != "TEST":
        message = f"keep= is for nets in phase TEST; the backward pass in {phase} reads all blobs"
        raise ConfigError(message)
    names = frozenset(() if keep == "outputs" else [keep] if isinstance(keep, str) else keep)
    unknown = sorted(names - set(known))
    if unknown:
        message = f"keep= names {', '.join(unknown)}; the net has {', '.join(known)}"
        raise NetError(message)
    return names


@dataclass
class Stay:
    """The time in which a memory is needed, as numbers of layers, both included."""

    memory: SyncedMemory
    name: str
    first: int
    last: int


@dataclass
class Booking:
    """A room, its size so far, and the last layer that it is taken for."""

    room: Room
    size: int = 0
    until: int = -1


class Reuse:
    """Buffers for the blobs that are not kept.

    Args:
        places: The layers with their blobs.
        kept: The blobs to keep.

    Attributes:
        house: The buffers.
        hidden: Ids of the blobs that are written by one layer, read by one other, and not kept: a
            backend need not compute them at all.
    """

    def __init__(self, places: Sequence[Place], kept: Iterable[Blob]) -> None:
        self.places, self.house = places, House()
        self._kept = {id(blob) for blob in kept}
        for place in places:
            # data layers lend their own memory, and what Python layers do with theirs is unknown
            if not place.bottom or place.layer.type == "Python":
                self._kept |= {id(blob) for blob in place.top}
        readers = Counter(id(b) for p in places for b in p.bottom if b not in p.top)
        self.hidden = frozenset(b for b, count in readers.items() if count == 1) - self._kept
        self._epoch = -1
        self._lodged: dict[int, int] = {}  # sizes by serials

    def settle(self, runs: Callable[[], Sequence[int]]) -> None:
        """Assign buffers, where shapes or memories have changed.

        Args:
            runs: Returns, for each layer, the last of those that may be computed as one with it.
        """
        if self._epoch != epoch.value:
            self._epoch = epoch.value
            stays = self._stays(runs())
            lodged = {stay.memory.serial: stay.memory.size for stay in stays}
            if lodged != self._lodged:
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
        for memory in self._memories():
            if memory.lodging is not None:
                memory.lodge(None)

    @property
    def nbytes(self) -> int:
        """Bytes that the blobs' data takes at present, kept ones included."""
        own = {m.serial: m.allocated for m in self._memories() if m.lodging is None}
        return self.house.nbytes + sum(own.values())

    def _memories(self) -> list[SyncedMemory]:
        return [b.data_memory for place in self.places for b in (*place.bottom, *place.top)]

    def needs(self, first: int, last: int) -> None:
        """Make sure that a pass over some layers finds what it reads.

        Raises:
            NetError: A layer reads a blob that only an earlier pass could have left behind.
        """
        written: set[int] = set()
        for place in self.places[first : last + 1]:
            for blob in place.bottom:
                serial = blob.data_memory.serial
                if serial in self._lodged and serial not in written:
                    message = (
                        f"{place.called} reads blob {blob.name!r}, which was not kept between "
                        f"passes; start further up, or name it in keep=[{blob.name!r}, ...]"
                    )
                    raise NetError(message)
            written |= {blob.data_memory.serial for blob in place.top}

    def _stays(self, together: Sequence[int]) -> list[Stay]:
        """Return the memories that may share, in the order in which they are first written."""
        stays: dict[int, Stay] = {}
        kept: set[int] = set()
        for index, place in enumerate(self.places):
            for blob in (*place.bottom, *place.top):
                memory = blob.data_memory
                if id(blob) in self._kept or memory.leased:
                    kept.add(memory.serial)
                stay = stays.setdefault(memory.serial, Stay(memory, blob.name, index, index))
                stay.last = max(stay.last, together[index])
        return [stay for serial, stay in stays.items() if serial not in kept]

    def _assign(self, stays: Sequence[Stay]) -> None:
        self.dissolve()
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
