"""Time limits for calls into a library that cannot be interrupted."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from demitasse.log import get_logger

__all__ = ["limit"]

log = get_logger(__name__)


@contextmanager
def limit(seconds: float, what: str) -> Iterator[None]:
    """End this process if a block takes too long.

    A thread does it, since the block may stand in a library. It ends by a signal: others notice
    that as they would a kill.

    Args:
        seconds: How long it may take.
        what: What has not happened then, for the log.
    """

    def give_up() -> None:
        log.error("%s within %g s.", what, seconds)
        os.abort()

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
