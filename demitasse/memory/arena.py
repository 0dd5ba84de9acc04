"""Arena: buffers that several memories of a net share, one after the other, within a pass.

Between passes a buffer has the contents of its last user; a read then raises an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from demitasse.backends.arrays import Array
from demitasse.core.config import settings
from demitasse.core.memory_info import HOST, Share, ledger
from demitasse.core.out_of_memory import with_location
from demitasse.core.text import bytes_text
from demitasse.errors import ErrorCode, NetError, OutOfMemoryError
from demitasse.memory.sides import StreamOrder

if TYPE_CHECKING:
    from demitasse.memory.synced import SyncedMemory

Kind = tuple[str, str]  # place ("host", a device, "private") and dtype


class Arena:
    """The shared buffers of one net; ``open`` during a pass, while their contents are valid."""

    def __init__(self) -> None:
        self.open = False
        self.slots: list[Slot] = []


@dataclass
class Slot:
    """One shared buffer, with an array of each kind: on the host, on a device, private.

    Attributes:
        expected: Elements of the largest memory of the slot. Arrays outside the host are allocated
            for that size at once: one that grew during a pass would stay until the next pass.
        sizes: Largest requested number of elements of each kind.
        outgrown: True if a larger array has replaced one that some memory still uses.
    """

    expected: int = 0
    arrays: dict[Kind, Array] = field(default_factory=dict)
    sizes: dict[Kind, int] = field(default_factory=dict)
    order: StreamOrder = field(default_factory=StreamOrder)
    outgrown: bool = False

    def borrow(self, kind: Kind, size: int, make: Callable[[int], Array]) -> Array:
        """Return elements of the array of a kind, with undefined contents. Shape: (size,)."""
        expected = 0 if kind[0] == HOST else self.expected
        most = self.sizes[kind] = max(size, expected, self.sizes.get(kind, 0))
        array = self.arrays.get(kind)
        if array is None or array.shape[0] < size:
            self.outgrown |= array is not None
            array = self.arrays[kind] = make(most)
        return array[:size]

    def shares(self) -> list[Share]:
        """Return the arrays, for the ledger of memory in use."""
        return [
            Share(
                HOST if where in {HOST, "private"} else where,
                id(array),
                math.prod(array.shape) * np.dtype(dtype).itemsize,
            )
            for (where, dtype), array in self.arrays.copy().items()
        ]

    def clear(self) -> None:
        """Drop all arrays; the next ones get the largest size requested so far."""
        self.arrays.clear()
        self.outgrown = False


@dataclass(frozen=True)
class Assignment:
    """The slot that a memory uses instead of buffers of its own."""

    arena: Arena
    slot: Slot
    name: str

    def check_open(self) -> None:
        """Refuse an access outside of a pass, when another memory may have used the buffer."""
        if not self.arena.open:
            message = (
                f"blob {self.name!r} was not kept: its memory is shared with other blobs; make the "
                f"net with keep_blobs=[{self.name!r}, ...], or without keep_blobs to keep all"
            )
            raise NetError(message, code=ErrorCode.BAD_STATE, blob=self.name)


def allocate(
    memory: SyncedMemory, place: str, size: int, make: Callable[[int], Array], dtype: str = ""
) -> Array:
    """Return a new array for a memory, or a part of the array of its slot.

    ``place`` is ``HOST``, a device or "private"; ``make`` returns a new array of a number of
    elements. The setting ``memory_limit`` may refuse the allocation.
    """
    dtype = dtype or memory.dtype

    def within_limit(size: int) -> Array:
        _check_limit(memory, place, size * np.dtype(dtype).itemsize)
        try:
            return make(size)
        except (OutOfMemoryError, MemoryError, OSError) as error:
            fault = with_location(error, memory.label)
            raise fault from fault.__cause__

    ledger.register(memory)
    if memory.assignment is None:
        return within_limit(size)
    return memory.assignment.slot.borrow((place, dtype), size, within_limit)


def _check_limit(memory: SyncedMemory, place: str, nbytes: int) -> None:
    """Refuse an allocation beyond the memory limit, of which host sides of a device are no part."""
    device = memory.device
    limit = settings.get_often("memory_limit")
    if not limit or (place == HOST and not device.shares_host):
        ledger.invalidate()
        return
    counted = HOST if device.shares_host else str(device)
    if not ledger.has_room(counted, nbytes, limit):
        message = (
            f"{memory.label} needs {bytes_text(nbytes)} on {device}; nets use "
            f"{bytes_text(ledger.used(counted))} of the limit of {bytes_text(limit)} "
            f"(memory_limit, {settings.where('memory_limit')}); make the batch smaller, delete "
            "other nets, or raise the limit"
        )
        raise OutOfMemoryError(message, needed=nbytes, limit=limit, device=str(device))
