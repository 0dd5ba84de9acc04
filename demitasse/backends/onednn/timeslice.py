"""Short turns on a core for the threads of a team.

Threads of a pass wait for each other after every operation. Where other programs keep the cores
busy, a wait ends when the thread that is behind gets its next turn, and all the others have theirs
first, each for milliseconds. A thread that asks for shorter turns gets them sooner and more often.
Its share of the core stays what it is.

Source: Linux, ``Documentation/scheduler/sched-eevdf.rst`` and sched_setattr(2); from version 6.12
on. Older ones take the request and do nothing.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

__all__ = ["SHORT", "shorten", "timeslice"]

SHORT = 300_000
"""Nanoseconds of a turn. Kernels allow 100,000 to 100,000,000."""

CALLS = {"x86_64": (315, 314), "aarch64": (275, 274)}
"""Numbers of the system's calls that read and set what a thread asks for, by processor."""

ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""Size, policy, flags, nice value, priority, turn, deadline and period."""

SELF = 0
SHARING = {getattr(os, name, None) for name in ("SCHED_OTHER", "SCHED_BATCH")}
"""Policies under which threads share a core in turns; under others the number means no turn."""

RESET_ON_FORK = 1
"""The one flag that is kept: whether new threads begin with the system's defaults."""


def shorten() -> None:
    """Ask for short turns for the calling thread, and for those that it will start.

    Does nothing where the system has no such request, refuses it, or has a shorter one already.
    """
    found = _attributes()
    if found is None:
        return
    size, policy, flags, nice, priority, turn, deadline, period = found
    if policy not in SHARING or 0 < turn <= SHORT:
        return
    wanted = ATTRIBUTES.pack(
        size, policy, flags & RESET_ON_FORK, nice, priority, SHORT, deadline, period
    )
    _call(CALLS[platform.machine()][1], wanted, SELF)


def timeslice() -> int:
    """Return for how many nanoseconds the calling thread gets a core at a time; 0 for unknown."""
    found = _attributes()
    return found[5] if found and found[1] in SHARING else 0


def _attributes() -> tuple[int, ...] | None:
    """Return what the calling thread asks for; None where the system does not say."""
    if sys.platform != "linux" or platform.machine() not in CALLS:
        return None
    answer = _call(CALLS[platform.machine()][0], bytes(ATTRIBUTES.size), ATTRIBUTES.size, SELF)
    return None if answer is None else ATTRIBUTES.unpack(answer)


def _call(number: int, attributes: bytes, *more: int) -> bytes | None:
    """Call the system for the calling thread; return the attributes then, or None if it refuses."""
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    words = [ctypes.c_long(word) for word in (number, SELF)]
    rest = [ctypes.c_long(word) for word in more]
    refused = ctypes.CDLL(None).syscall(*words, buffer, *rest)
    return None if refused else buffer.raw
