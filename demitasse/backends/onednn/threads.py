"""Threads: oneDNN's take part in a pass, numpy's BLAS is held to one meanwhile.

After a matrix product OpenBLAS's workers keep spinning for a while. Beside oneDNN's threads they
cost a factor of 2 for large operations and of 100 for small ones.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from demitasse.backends.kernels.language.team import check_workers, openmp
from demitasse.backends.numpy.blas import blas
from demitasse.config import settings

__all__ = ["only_ours", "wanted"]


class _OfThread(threading.local):
    threads = 0
    changes = -1


class _Pass:
    """A pass that is under way."""


_own = _OfThread()
_passes: weakref.WeakSet[_Pass] = weakref.WeakSet()
_lowered: dict[Any, int] = {}
"""How many threads each of numpy's BLAS libraries had before passes took them."""


@contextmanager
def only_ours() -> Iterator[None]:
    """Run a pass of this thread: our number of threads, and one for BLAS.

    What BLAS had comes back when the last pass of the process ends. There is no lock and no count
    that an interrupt could leave taken: a pass counts as long as its frame lives.
    """
    check_workers()
    _set_ours()
    own = _Pass()
    try:
        _passes.add(own)
        for library in blas():
            threads = library.get_num_threads()
            if threads > 1:
                _lowered[library] = threads
                library.set_num_threads(1)
        yield
    finally:
        _passes.discard(own)
        if not _passes:
            for library in blas():
                threads = _lowered.pop(library, 0)
                if threads:
                    library.set_num_threads(threads)


def _set_ours() -> None:
    """Let oneDNN use as many threads as the setting says; OpenMP keeps that for each thread."""
    if _own.changes == settings.changes:
        return
    _own.changes, threads = settings.changes, wanted()
    if _own.threads != threads:
        runtime = openmp()
        if runtime is not None:
            runtime.omp_set_num_threads(threads)
        _own.threads = threads


def wanted() -> int:
    """Return how many threads a pass has."""
    return int(settings.get("threads")) or int(os.environ.get("OMP_NUM_THREADS") or 0) or _cores()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
