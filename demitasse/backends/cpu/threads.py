"""Threads of a pass."""

import os
import threading

from demitasse.backends.kernels import language as kernels
from demitasse.backends.kernels.language.team import prepare
from demitasse.core.config import settings
from demitasse.core.config.table import MOST_THREADS
from demitasse.core.host import cores


class _OfThread(threading.local):
    seen = -1, 0


_own = _OfThread()


def ready_threads() -> None:
    """Start the threads of a pass.

    Raises:
        DeviceError: The threads cannot be started.
    """
    now = settings.changes, os.getpid()
    if now == _own.seen:
        return
    prepare(wanted())
    _own.seen = now


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
