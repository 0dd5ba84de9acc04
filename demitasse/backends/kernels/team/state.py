"""Shared state of a team's threads, in memory that compiled code reads and writes.

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
    """True if some thread leads a region."""
    KEY = 8
    """By which each thread finds its :class:`Member`."""
    TICKET = 64
    WORK = 128
    """The region's function."""
    ARGUMENT = 136
    """Argument of the function."""
    DONE = 192
    """Number of parts that helpers have finished."""
    WAITING = 200
    """Number of leaders that sleep until ``DONE`` changes: 1 or 0."""
    BELL = 256
    """Is another number each time that sleeping helpers are woken."""
    ASLEEP = 264
    """Number of helpers that sleep."""
    RESTING = 272
    """Number of helpers that sleep without a timeout."""
    HELPERS = 320
    ALONE = 328
    """For how many regions more the helpers are not woken, and come by themselves or not at all."""
    LEVEL = 336
    """Recent hits of the timed sleep; each one doubles the number of regions."""
    GOOD = 344
    """Number of regions since the last miss."""
    BEGUN = 352
    """Start time of the region."""
    CALLED = 360
    """True if helpers were to come at once, so that one may be late."""
    LEADER = 384
    """The leader's :class:`Member`."""
    ARRIVED = 448
    """Number of members at the barrier."""
    PHASE = 456
    """Is another number after each barrier."""
    AT_BARRIER = 464
    """Number of members that sleep until ``PHASE`` changes."""
    END = 512


class Member(IntEnum):
    """Places in what a thread knows while it computes a part."""

    PART = 0
    """Thread number."""
    PARTS = 8
    """Number of threads."""
    DEPTH = 16
    """In how many regions within the region; those have one part each."""
    TRIPS = 24
    """Number of loop blocks assigned to it."""
    START = 32
    STOP = 40
    STEP = 48
    CHUNK = 56
    END = 64


REGION, PARTS = 1 << 32, 1 << 16
"""Increments of ``TICKET`` for a region and for a part."""

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
"""Polls of a helper after a timed sleep, before it sleeps until it is woken."""

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
