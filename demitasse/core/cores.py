"""How many of the machine's cores this process may use.

Affinity says which cores it may run on. A container's or a job's quota (a control group, version 1
or 2) says for how long in each period: threads beyond that only take time from each other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from demitasse.core.cgroups import groups, lines

__all__ = ["cores", "quota"]


@cache
def cores() -> int:
    """Return how many threads can run at the same time, at least 1."""
    allowed = quota()
    there = affine()
    return there if allowed is None else max(1, min(there, _rounded_up(allowed)))


def affine() -> int:
    """Return how many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def quota(root: Path = Path("/")) -> float | None:
    """Return the quota in cores, or None where there is none.

    Args:
        root: Where ``proc`` and ``sys`` are.
    """
    return min(_quotas(root), default=None)


def _quotas(root: Path) -> Iterator[float]:
    for version, group in groups("cpu", root):
        if version == 2:
            yield from _share(*_words(group / "cpu.max"))
        else:
            limit, period = group / "cpu.cfs_quota_us", group / "cpu.cfs_period_us"
            yield from _share(*_words(limit), *_words(period))


def _words(file: Path) -> list[str]:
    return " ".join(lines(file)).split()


def _share(*words: str) -> Iterator[float]:
    """Yield a limit and its period, in microseconds, as a number of cores; "max" or -1 is none."""
    with suppress(ValueError):
        limit, period = (int(word) for word in words)
        if limit > 0 and period > 0:
            yield limit / period


def _rounded_up(number: float) -> int:
    return -int(-number // 1)
