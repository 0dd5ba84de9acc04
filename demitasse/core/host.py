"""Cores and memory of the host that this process may use.

CPU affinity, control groups (version 1 and 2: containers, batch jobs) and ``ulimit`` may allow a
process less than the machine has. Outside Linux only the machine's size is known.

Source: the kernel's documentation, ``cgroup-v1/cgroups.rst`` and ``cgroup-v2.rst``.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from demitasse.core.text import bytes_text

CGROUP_MOUNT = Path("sys/fs/cgroup")

UNLIMITED = 1 << 60  # version 1 reports a number above this one for no limit, version 2 ``max``

LARGE = 1 << 30
"""``check_size`` accepts allocations up to this number of bytes without reading the limits."""

GROUP_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}
"""Files with the limit and the usage of a memory control group, by version, and the entry of
``memory.stat`` that counts reclaimable page cache."""

Bounds = tuple[int, int]  # a limit and its present usage, in bytes


@cache
def cores() -> int:
    """Return the number of threads that can run at the same time, at least 1."""
    allowed, present = quota(), affinity_cores()
    return present if allowed is None else max(1, min(present, -int(-allowed // 1)))


def affinity_cores() -> int:
    """Return the number of cores in this process's affinity mask."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def quota(root: Path = Path("/")) -> float | None:
    """Return the CPU quota in cores, or None; ``root`` has the folders ``proc`` and ``sys``."""
    quotas = []
    for version, group in cgroups("cpu", root):
        files = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        words = " ".join(line for file in files for line in _lines(group / file)).split()
        with suppress(ValueError):  # "max", or no such file
            limit, period = (int(word) for word in words)
            if limit > 0 and period > 0:
                quotas.append(limit / period)
    return min(quotas, default=None)


def cgroups(controller: str, root: Path) -> Iterator[tuple[int, Path]]:
    """Yield version and folder of each control group that limits a resource, innermost first."""
    mount = root / CGROUP_MOUNT
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from ((2, group) for group in _with_parents(mount, path))
        elif controller in controllers.split(","):
            for name in dict.fromkeys((controller, controllers)):
                yield from ((1, group) for group in _with_parents(mount / name, path))


def _with_parents(mount: Path, path: str) -> Iterator[Path]:
    """Yield a group and its parents.

    In a container, ``path`` may be the host's and missing here; the container's own group is then
    at the mount point.
    """
    group = mount / path.strip("/")
    for folder in (group, *group.parents):
        if not folder.is_relative_to(mount):
            return
        yield folder


@dataclass(frozen=True)
class HostMemory:
    """Memory of the host, in bytes: physical, or this process's limit if that is lower.

    ``free`` is available without swapping; ``process`` is the resident memory of this process.
    They are None, or the total 0, if unknown.
    """

    total: int
    free: int | None
    process: int | None


def host_memory(root: Path = Path("/")) -> HostMemory:
    """Return the host's memory within this process's limits."""
    machine = _counters(root / "proc/meminfo")
    if "MemTotal" not in machine:
        if sys.platform == "win32":
            status = (ctypes.c_uint64 * 8)(64)  # MEMORYSTATUSEX: its size, total and free memory
            ctypes.windll.kernel32.GlobalMemoryStatusEx(status)
            return HostMemory(status[1], status[2], None)
        try:
            physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (AttributeError, OSError, ValueError):
            physical = 0
        return HostMemory(physical, None, None)
    total = machine["MemTotal"]
    free = machine.get("MemAvailable", machine.get("MemFree", 0))
    for limit, used in _memory_bounds(root):
        total, free = min(total, limit), min(free, limit - used)
    process = _counters(root / "proc/self/status").get("VmRSS")
    return HostMemory(total, max(0, free), process)


def check_size(nbytes: int) -> None:
    """Raise a MemoryError for an allocation that exceeds the host's total memory."""
    if nbytes > LARGE and 0 < (total := host_memory().total) < nbytes:
        message = f"it takes {bytes_text(nbytes)}, and there are {bytes_text(total)} in all"
        raise MemoryError(message)


def process_peak(root: Path = Path("/")) -> int | None:
    """Return the peak resident memory of this process in bytes; None if unknown."""
    return _counters(root / "proc/self/status").get("VmHWM")


@contextmanager
def limited_to(more: int) -> Iterator[bool]:
    """Limit this process to ``more`` bytes beyond its present data segment, on Linux.

    The system refuses allocations beyond the limit. Pages that are allocated and never touched
    count, too. Yields False if the system does not support the limit.
    """
    used = _counters(Path("/proc/self/status")).get("VmData")
    if used is None or find_spec("resource") is None:  # Windows has neither
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


def _memory_bounds(root: Path) -> Iterator[Bounds]:
    """Yield the memory limits of this process: of control groups, then of ``ulimit``."""
    for version, group in cgroups("memory", root):
        limit_file, usage_file, cache_entry = GROUP_FILES[version]
        limit, used = _number(group / limit_file), _number(group / usage_file)
        if limit is None or used is None or limit >= UNLIMITED:
            continue
        # the kernel reclaims inactive page cache before it refuses an allocation
        reclaimable = _counters(group / "memory.stat").get(cache_entry, 0)
        yield limit, max(0, used - reclaimable)
    with suppress(ImportError):
        import resource

        status = _counters(root / "proc/self/status")
        for kind, entry in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
            soft = resource.getrlimit(kind)[0]
            if soft != resource.RLIM_INFINITY and entry in status:
                yield soft, status[entry]


def _lines(file: Path) -> list[str]:
    """Return the lines of a kernel file; an empty list if the file is missing."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _counters(path: Path) -> dict[str, int]:
    """Return the numbers of a kernel file by name, in bytes."""
    counters = {}
    for line in _lines(path):
        words = line.replace(":", " ").split()
        if len(words) > 1 and words[1].isdecimal():
            counters[words[0]] = int(words[1]) * (1024 if words[-1] == "kB" else 1)
    return counters


def _number(path: Path) -> int | None:
    """Return the number in a kernel file; None if the file is missing or contains ``max``."""
    word = next(iter(_lines(path)), "").strip()
    return int(word) if word.isdecimal() else None
