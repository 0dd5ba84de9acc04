"""Arena: buffers that several memories of a net use, one after the other, within a pass.

Between passes a buffer holds whatever its last user left, so reading one then is an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from demitasse.backends.arrays import Array
from demitasse.backends.home import Home
from demitasse.core.memory_info import HOST, Share
from demitasse.errors import ErrorCode, NetError
from demitasse.memory.sides import Traffic

__all__ = ["Arena", "Assignment", "Slot"]


Kind = tuple[str, str]  # where, and of what dtype


class Arena:
    """The shared buffers of one net.

    Attributes:
        open: Whether a pass is under way, so that what the buffers hold can be relied on.
        slots: The buffers.
    """

    def __init__(self) -> None:
        self.open = False
        self.slots: list[Slot] = []

    @property
    def nbytes(self) -> int:
        """Size of all buffers, in bytes."""
        return sum(
            math.prod(array.shape) * np.dtype(dtype).itemsize
            for slot in self.slots
            for (_, dtype), array in slot.arrays.items()
        )


@dataclass
class Slot:
    """One shared buffer. It has an array of each kind: on the host, on a device, private.

    Attributes:
        expected: Elements of the largest memory that will use it. Arrays outside the host are made
            for that at once: those that grew during a pass would stay until the next one.
        arrays: One-dimensional arrays by kind.
        sizes: The most elements of each kind that were asked for.
        traffic: What may still be under way in the arrays.
        outgrown: Whether a larger array has replaced one that some memory still uses.
    """

    expected: int = 0
    arrays: dict[Kind, Array] = field(default_factory=dict)
    sizes: dict[Kind, int] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    outgrown: bool = False

    def lend(self, kind: Kind, size: int, make: Callable[[int], Array]) -> Array:
        """Return ``size`` elements of the array of a kind, with undefined contents.

        Args:
            kind: Where, and of what dtype.
            size: How many elements.
            make: Returns a new array of so many elements.

        Shape: (size,).
        """
        expected = 0 if kind[0] == HOST else self.expected
        most = self.sizes[kind] = max(size, expected, self.sizes.get(kind, 0))
        array = self.arrays.get(kind)
        if array is None or array.shape[0] < size:
            self.outgrown |= array is not None
            array = self.arrays[kind] = make(most)
        return array[:size]

    def shares(self) -> list[Share]:
        """Return its arrays."""
        return [
            Share(
                HOST if where in {HOST, "private", "apart"} else where,
                id(array),
                math.prod(array.shape) * np.dtype(dtype).itemsize,
            )
            for (where, dtype), array in self.arrays.copy().items()
        ]

    def clear(self) -> None:
        """Drop all arrays; the next ones are made as large as was ever asked for."""
        self.arrays.clear()
        self.outgrown = False


@dataclass(frozen=True)
class Assignment:
    """The slot that a memory uses instead of buffers of its own.

    Attributes:
        arena: The arena that the slot is in.
        slot: The buffer.
        name: The blob's name, for messages.
        home: Where in another memory the private side may lie, or that others may lie in it.
        host: The slot of that other memory.
    """

    arena: Arena
    slot: Slot
    name: str
    home: Home | None = None
    host: Slot | None = None

    def check_open(self) -> None:
        """Make sure that a pass is under way.

        Raises:
            NetError: There is none, so the buffer may hold what another memory wrote.
        """
        if not self.arena.open:
            message = (
                f"blob {self.name!r} was not kept: its memory served other layers too; name it in "
                f"keep=[{self.name!r}, ...] when the net is made, or leave keep out to have all"
            )
            raise NetError(message, code=ErrorCode.BAD_STATE, blob=self.name)
