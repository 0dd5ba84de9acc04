"""Threads: oneDNN's take part in a pass, numpy's BLAS is held to one meanwhile.

After a matrix product OpenBLAS's workers keep spinning for a while. Beside oneDNN's threads they
cost a factor of 2 for large operations and of 100 for small ones.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from demitasse.backends.kernels.language.team import openmp
from demitasse.config import settings

__all__ = ["only_ours", "wanted"]


class _OfThread(threading.local):
    threads = 0
    changes = -1


_own = _OfThread()
_lock = threading.Lock()
_entered = 0
_before: list[int] = []


@contextmanager
def only_ours() -> Iterator[None]:
    """Run a pass of this thread: our number of threads, and one for BLAS.

    What BLAS had comes back when the last pass of the process ends.
    """
    global _entered  # noqa: PLW0603 - one count for the process, as BLAS has one setting
    _set_ours()
    with _lock:
        if not _entered:
            _before[:] = [library.get_num_threads() for library in _blas()]
            for library, threads in zip(_blas(), _before, strict=True):
                if threads > 1:
                    library.set_num_threads(1)
        _entered += 1
    try:
        yield
    finally:
        with _lock:
            _entered -= 1
            if not _entered:
                for library, threads in zip(_blas(), _before, strict=True):
                    if threads > 1:
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


@cache
def _blas() -> list[Any]:
    """Return numpy's BLAS libraries as they are controlled."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return []
    controller = ThreadpoolController().select(user_api="blas", internal_api="openblas")
    return list(controller.lib_controllers)
