"""Memory of the host: what this process may still have, within the limits that it is under.

A container or a job has a limit of its own (a control group, version 1 or 2), far below what the
machine has; ``ulimit`` may set one, too. Where none of this can be asked, as on other systems than
Linux, the machine's size is all that is known.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from demitasse.core.capacity.sizes import bytes_text
from demitasse.core.cgroups import groups, lines

__all__ = ["HostMemory", "check_size", "host_memory", "limited_to", "process_peak"]

UNLIMITED = 1 << 60
"""A control group without a limit says a number of this size, or ``max``."""

LARGE = 1 << 30
"""Up to so many bytes nobody asks whether there is memory for it."""

GROUP_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}
"""Where a control group of a version says its limit and its use, and its line for pages of files
that nobody uses."""

Bounds = tuple[int, int]
"""The limit of something, and how much of it is used, in bytes."""


@dataclass(frozen=True)
class HostMemory:
    """Memory of the host, in bytes.

    Attributes:
        total: What the machine has, or less where this process is limited to less.
        free: What can still be had without swapping; None where it cannot be asked.
        process: What this process has in memory; None where it cannot be asked.
    """

    total: int
    free: int | None
    process: int | None


def host_memory(root: Path = Path("/")) -> HostMemory:
    """Return what there is now.

    Args:
        root: Where ``proc`` and ``sys`` are.
    """
    machine = _table(root / "proc/meminfo")
    if "MemTotal" not in machine:
        return HostMemory(_pages("SC_PHYS_PAGES"), None, None)
    total = machine["MemTotal"]
    free = machine.get("MemAvailable", machine.get("MemFree", 0))
    for limit, used in _bounds(root):
        total, free = min(total, limit), min(free, limit - used)
    process = _table(root / "proc/self/status").get("VmRSS")
    return HostMemory(total, max(0, free), process)


def check_size(nbytes: int) -> None:
    """See that something which is made later can be in memory at all.

    Raises:
        MemoryError: It is larger than what there is in all.
    """
    if nbytes > LARGE and 0 < (total := host_memory().total) < nbytes:
        message = f"it takes {bytes_text(nbytes)}, and there are {bytes_text(total)} in all"
        raise MemoryError(message)


def process_peak(root: Path = Path("/")) -> int | None:
    """Return the most that this process ever had in memory, in bytes; None where nobody knows."""
    return _table(root / "proc/self/status").get("VmHWM")


@contextmanager
def limited_to(more: int) -> Iterator[bool]:
    """Let this process have so many bytes more than it has now, and no further, on Linux.

    What it asks for beyond that is refused by the system, as if there were no more. Pages that are
    asked for and never touched count, too.

    Yields:
        Whether the system can do that.
    """
    used = _table(Path("/proc/self/status")).get("VmData")
    if used is None:
        yield False
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = used + more
    soft = min(wanted, *(one for one in before if one != resource.RLIM_INFINITY), UNLIMITED)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, before[1]))
    try:
        yield True
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _bounds(root: Path) -> Iterator[Bounds]:
    """Yield the limits that this process is under."""
    for version, group in groups("memory", root):
        limit, usage, cache = GROUP_FILES[version]
        most, used = _number(group / limit), _number(group / usage)
        if most is None or used is None or most >= UNLIMITED:
            continue
        # pages of files that nobody uses are given up before memory is refused
        given_up = _table(group / "memory.stat").get(cache, 0)
        yield most, max(0, used - given_up)
    yield from _rlimits(root)


def _rlimits(root: Path) -> Iterator[Bounds]:
    """Yield what ``ulimit`` says of memory."""
    with suppress(ImportError):
        import resource

        status = _table(root / "proc/self/status")
        for which, used in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
            soft = resource.getrlimit(which)[0]
            if soft != resource.RLIM_INFINITY and used in status:
                yield soft, status[used]


def _table(path: Path) -> dict[str, int]:
    """Return the numbers of a file of the kernel by their names, in bytes."""
    found = {}
    for line in lines(path):
        words = line.replace(":", " ").split()
        if len(words) > 1 and words[1].isdecimal():
            found[words[0]] = int(words[1]) * (1024 if words[-1] == "kB" else 1)
    return found


def _number(path: Path) -> int | None:
    """Return the number in a file; None where there is none, or it says ``max``."""
    word = next(iter(lines(path)), "").strip()
    return int(word) if word.isdecimal() else None


def _pages(name: str) -> int:
    """Return what a number of pages comes to; 0 where the system does not say."""
    try:
        return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0
