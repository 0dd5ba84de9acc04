"""Threads of a pass: their number, and the length of their time slice."""

import ctypes
import os
import platform
import struct
import sys
import threading

from demitasse.backends.kernels import language as kernels
from demitasse.backends.kernels.language.team import prepare
from demitasse.core.config import settings
from demitasse.core.config.table import MOST_THREADS
from demitasse.core.host import cores


class _OfThread(threading.local):
    threads = 0
    changes = -1
    process = 0


_own = _OfThread()


def ready_threads() -> None:
    """Start the threads of a pass.

    Raises:
        DeviceError: The threads cannot be started.
    """
    if _own.changes == settings.changes and _own.process == os.getpid():
        return
    changes, process, threads = settings.changes, os.getpid(), wanted()
    if (_own.threads, _own.process) != (threads, process):
        _own.threads = 0
        if threads > 1:
            request_short_slice()  # workers inherit it
        prepare(threads)
    _own.changes, _own.process, _own.threads = changes, process, threads


def wanted() -> int:
    """Return the number of threads of a pass; 1 without kernels."""
    if not kernels.status().ready:
        return 1
    return int(settings.get_often("threads")) or _of_openmp() or cores()


def _of_openmp() -> int:
    """Return the number of threads in ``OMP_NUM_THREADS``; 0 if absent or invalid.

    Of a list, the first number counts: that of the outermost level.
    """
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    number = int(first) if first.isdecimal() and len(first) < 10 else 0
    return number if number <= MOST_THREADS else 0


SHORT = 300_000
"""Nanoseconds of a time slice. Kernels allow 100,000 to 100,000,000."""

CALLS = {"x86_64": (315, 314), "aarch64": (275, 274)}
"""Numbers of the system's calls that read and set what a thread asks for, by processor."""

ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""Size, policy, flags, nice value, priority, time slice, deadline and period."""

SELF = 0
SHARING = {getattr(os, name, None) for name in ("SCHED_OTHER", "SCHED_BATCH")}
"""Scheduling policies with time slices."""

RESET_ON_FORK = 1
"""The one flag that is kept: whether new threads begin with the system's defaults."""


def request_short_slice() -> None:
    """Request a short time slice for the calling thread and threads that it starts.

    Does nothing if the system has no such request, refuses it, or the slice is shorter already.
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


def _attributes() -> tuple[int, ...] | None:
    """Return the calling thread's scheduling attributes; None if unknown."""
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
