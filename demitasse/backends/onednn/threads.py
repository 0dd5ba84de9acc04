"""Number of OpenMP threads of a pass."""

from __future__ import annotations

import os
import threading

from demitasse.backends.kernels.language.team import check_workers, openmp
from demitasse.backends.onednn import timeslice
from demitasse.core.config import settings
from demitasse.core.config.table import MOST_THREADS
from demitasse.core.host import cores

__all__ = ["ready_threads", "wanted"]


class _OfThread(threading.local):
    threads = 0
    changes = -1


_own = _OfThread()


def ready_threads() -> None:
    """Let oneDNN use as many threads as the setting says; OpenMP keeps that for each thread.

    Raises:
        DeviceError: A fork has left this process without threads that OpenMP waits for.
    """
    check_workers()
    if _own.changes == settings.changes:
        return
    _own.changes, threads = settings.changes, wanted()
    if _own.threads != threads:
        runtime = openmp()
        if runtime is not None:
            runtime.omp_set_num_threads(threads)
        if threads > 1:
            timeslice.shorten()  # workers take it over from the thread that starts them
        _own.threads = threads


def wanted() -> int:
    """Return how many threads a pass has."""
    return int(settings.get_often("threads")) or _of_openmp() or cores()


def _of_openmp() -> int:
    """Return what ``OMP_NUM_THREADS`` says, 0 for nothing that can be.

    It may be a list, of which the first number is that of the outermost level. As in OpenMP's
    libraries, what is no number of threads is as if it were not there.
    """
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    number = int(first) if first.isdecimal() and len(first) < 10 else 0
    return number if number <= MOST_THREADS else 0
