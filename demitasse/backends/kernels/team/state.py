"""What the threads of a team share, in memory that compiled code reads and writes.

Times are in ticks of the processor's time stamp counter, some 2 to 4 of which are a nanosecond.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum

__all__ = [
    "ALONE_AT_FIRST", "BUSY_SHIFT", "GOOD_ENOUGH", "LATE", "LEVELS", "LONG_ROUNDS", "NAP", "PARTS",
    "REGION", "SPIN", "WAIT", "Field", "Member", "State",
]  # fmt: skip


class Field(IntEnum):
    """Places in bytes, of words; what different threads write at the same time is 64 bytes apart.

    A region is a function that each member of the team calls with its part. ``TICKET`` says which
    region, of how many parts, and how many of those somebody has taken: 32, 16 and 16 bits.
    """

    BUSY = 0
    """Whether some thread leads a region."""
    KEY = 8
    """By which each thread finds its :class:`Member`."""
    TICKET = 64
    WORK = 128
    """The region's function."""
    ARGUMENT = 136
    """What it is called with."""
    DONE = 192
    """How many parts the helpers have done."""
    WAITING = 200
    """How many leaders sleep until ``DONE`` changes: one, or none."""
    BELL = 256
    """Is another number each time that sleeping helpers are woken."""
    ASLEEP = 264
    """How many helpers sleep."""
    RESTING = 272
    """How many of them sleep until they are woken."""
    HELPERS = 320
    ALONE = 328
    """For how many regions more the helpers are not woken, and come by themselves or not at all."""
    LEVEL = 336
    """How often that was of use of late: each time doubles the number of regions."""
    GOOD = 344
    """How many regions have gone well since."""
    BEGUN = 352
    """When the region began."""
    CALLED = 360
    """Whether helpers were to come at once, so that one may be late."""
    LEADER = 384
    """The leader's :class:`Member`."""
    ARRIVED = 448
    """How many members have come to a barrier."""
    PHASE = 456
    """Is another number after each barrier."""
    AT_BARRIER = 464
    """How many members sleep until ``PHASE`` changes."""
    END = 512


class Member(IntEnum):
    """Places in what a thread knows while it computes a part."""

    PART = 0
    """Which one."""
    PARTS = 8
    """Of how many."""
    DEPTH = 16
    """In how many regions within the region; those have one part each."""
    TRIPS = 24
    """How many blocks of a loop it was given."""
    START = 32
    STOP = 40
    STEP = 48
    CHUNK = 56
    END = 64


REGION, PARTS = 1 << 32, 1 << 16
"""What a region and a part count in ``TICKET``."""

SPIN = 800_000
"""Ticks for which a helper looks for more to do before it sleeps; a pass seldom pauses longer."""

WAIT = 400_000
"""Ticks for which the leader looks whether helpers are done before it sleeps."""

BUSY_SHIFT = 4
"""Both are shorter, by so many halvings, while helpers have been late: others need the cores."""

LATE = 1_500_000
"""Ticks that a leader waits at least for a helper that is called late. If that was longer than it
took to do its own part, the helper had no core."""

ALONE_AT_FIRST, LEVELS = 16, 5
"""For how many regions the helpers are not woken after one was late, and how often that doubles."""

LONG_ROUNDS = 50
"""How often a helper looks after a nap, before it sleeps until it is woken."""

GOOD_ENOUGH = 8
"""Regions that must go well for the number to be halved."""

NAP = 100_000
"""Nanoseconds after which a helper that nobody wakes looks whether a region is still not done. It
then takes part in that: so long ones are shared, and a part can wait for another."""


class State:
    """The memory. It is never given back: helpers look at it until the process has ended.

    Attributes:
        address: Where it is.
    """

    def __init__(self) -> None:
        allocate = ctypes.CDLL(None).aligned_alloc
        allocate.restype, allocate.argtypes = ctypes.c_void_p, [ctypes.c_size_t] * 2
        self.address: int = allocate(64, Field.END) or 0
        if not self.address:
            raise MemoryError
        ctypes.memset(self.address, 0, Field.END)
        key = ctypes.c_uint()
        if ctypes.CDLL(None).pthread_key_create(ctypes.byref(key), None):
            raise MemoryError
        self[Field.KEY] = key.value

    def clear(self) -> None:
        """Let there be no helpers and no region, as in a process that has just been forked."""
        key = self[Field.KEY]
        ctypes.memset(self.address, 0, Field.END)
        self[Field.KEY] = key

    def __getitem__(self, field: Field) -> int:
        return ctypes.c_int64.from_address(self.address + field).value

    def __setitem__(self, field: Field, value: int) -> None:
        ctypes.c_int64.from_address(self.address + field).value = value
