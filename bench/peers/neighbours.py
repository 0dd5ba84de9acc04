"""How much of the processor others use while one process is measured."""

import os
import time

import psutil

__all__ = ["LIMIT", "Watch"]

LIMIT = 0.04
"""Share of one core that others may use in a measurement that counts."""

TICKS = 2 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.02
"""Seconds that the system's bookkeeping may be wrong by."""


class Watch:
    """Looks at the processor from its making on.

    Args:
        process: Id of the process that is measured.
    """

    def __init__(self, process: int) -> None:
        self._processes = [psutil.Process(process), psutil.Process()]
        self._start, self._busy, self._ours = time.perf_counter(), _busy(), self._own()

    def others(self) -> float:
        """Return the share of one core that all other processes used since then."""
        elapsed = time.perf_counter() - self._start
        others = _busy() - self._busy - (self._own() - self._ours) - TICKS
        return max(0.0, others / elapsed)

    def _own(self) -> float:
        times = [process.cpu_times() for process in self._processes]
        return sum(t.user + t.system for t in times)


def _busy() -> float:
    times = psutil.cpu_times()._asdict()
    idle = sum(times.get(name, 0.0) for name in ("idle", "iowait", "guest", "guest_nice"))
    return sum(times.values()) - idle
