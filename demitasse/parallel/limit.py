"""Time limits for calls into a library that cannot be interrupted."""

from __future__ import annotations

import faulthandler
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from demitasse.log import get_logger

__all__ = ["limit"]

log = get_logger(__name__)

LATER = 3.0
"""Seconds that ending all processes may take before this one ends by itself."""


@contextmanager
def limit(seconds: float, what: str, end: Callable[[], None]) -> Iterator[None]:
    """End all processes if a block takes too long.

    A thread does it, since the block stands in a library. Where that keeps the interpreter's
    threads from running, as MPI does while it begins, this process ends by itself, with code 1, and
    shows where it stands.

    Args:
        seconds: How long it may take.
        what: What has not happened then, for the log.
        end: Ends all processes.
    """

    def give_up() -> None:
        log.error("%s within %g s.", what, seconds)
        end()

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    faulthandler.dump_traceback_later(seconds + LATER, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        timer.cancel()
