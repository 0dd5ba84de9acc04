"""Buffers that several memories of a net use, one after the other, within a pass.

Between passes they hold nothing that can be relied on, and whoever looks is told so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from demitasse.backends.base import Array
from demitasse.errors import NetError

__all__ = ["House", "Lodging", "Room"]


Kind = tuple[str, str]  # where, and of what dtype


class House:
    """The shared buffers of one net.

    Attributes:
        open: Whether a pass is under way.
        rooms: The buffers.
    """

    def __init__(self) -> None:
        self.open = False
        self.rooms: list[Room] = []

    @property
    def nbytes(self) -> int:
        """Size of all buffers, in bytes."""
        return sum(
            math.prod(array.shape) * np.dtype(dtype).itemsize
            for room in self.rooms
            for (_, dtype), array in room.arrays.items()
        )


@dataclass
class Room:
    """One buffer of each kind: host memory, device memory, memory for private layouts.

    Attributes:
        arrays: One-dimensional arrays by kind.
        sizes: The most elements of each kind that were asked for.
        outgrown: Whether a larger array has taken the place of one that is still in use.
    """

    arrays: dict[Kind, Array] = field(default_factory=dict)
    sizes: dict[Kind, int] = field(default_factory=dict)
    outgrown: bool = False

    def lend(self, kind: Kind, size: int, make: Callable[[int], Array]) -> Array:
        """Return ``size`` elements of the buffer of that kind, which hold anything.

        Args:
            kind: Where, and of what dtype.
            size: How many.
            make: Returns new memory of so many elements.

        Shape: (size,).
        """
        most = self.sizes[kind] = max(size, self.sizes.get(kind, 0))
        array = self.arrays.get(kind)
        if array is None or array.shape[0] < size:
            self.outgrown |= array is not None
            array = self.arrays[kind] = make(most)
        return array[:size]

    def clear(self) -> None:
        """Let go of all arrays; the next ones are large enough for everybody."""
        self.arrays.clear()
        self.outgrown = False


@dataclass(frozen=True)
class Lodging:
    """A memory's place in a room.

    Attributes:
        house: The house.
        room: The buffer.
        name: The blob's name, for messages.
    """

    house: House
    room: Room
    name: str

    def enter(self) -> None:
        """Make sure that a pass is under way.

        Raises:
            NetError: There is none, so that the buffer may hold anything.
        """
        if not self.house.open:
            message = (
                f"blob {self.name!r} was not kept: its memory served other layers too; name it in "
                f"keep=[{self.name!r}, ...] when the net is made, or leave keep out to have all"
            )
            raise NetError(message)
