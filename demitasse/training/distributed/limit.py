"""Time limits for calls into a library that cannot be interrupted."""

from __future__ import annotations

import faulthandler
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from demitasse.training.distributed.watchdog import TICK, Watchdog

__all__ = ["limit"]

LATER = 3.0
"""Seconds that ending all processes may take before this one ends by itself."""


@contextmanager
def limit(seconds: float, what: str, end: Callable[[], None], watchdog: Watchdog) -> Iterator[None]:
    """End all processes if a block takes too long.

    The watchdog says so. A thread ends them, since the block stands in a library. Where that keeps
    the interpreter's threads from running, as MPI does while it begins, this process ends by
    itself, with code 1, and shows where it stands; where it cannot do even that, because it is
    stopped, the watchdog kills it.

    Args:
        seconds: How long it may take.
        what: What has not happened then, and what to do.
        end: Ends all processes.
        watchdog: That of this process.
    """
    timer = threading.Timer(seconds + 2 * TICK, end)  # once the watchdog has said why
    timer.daemon = True
    timer.start()
    faulthandler.dump_traceback_later(seconds + LATER, exit=True)
    try:
        with watchdog.within(seconds, what):
            yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        timer.cancel()
