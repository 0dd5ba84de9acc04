"""Threads, and what is said where the system gives no more of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from demitasse.core.config import settings
from demitasse.core.cores import cores
from demitasse.errors import DeviceError

__all__ = ["Pool", "start", "wanted_threads"]

P = ParamSpec("P")
T = TypeVar("T")


def wanted_threads(most: int | None = None) -> int:
    """Return how many threads are to work on numbers: what the setting says, else one a core.

    Args:
        most: How many there are at most, unless the setting says more.
    """
    there = cores()
    return int(settings.get_often("threads")) or (there if most is None else min(most, there))


def start(thread: threading.Thread) -> None:
    """Start a thread.

    Raises:
        DeviceError: The system gives this process no more threads.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise _none_left(error) from error


class Pool(ThreadPoolExecutor):
    """A pool that is at its end once a thread cannot be started: what was not begun, never is."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have a function called by one of the threads.

        Raises:
            DeviceError: The system gives this process no more threads.
        """
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError as error:
            self.shutdown(cancel_futures=True)  # else it would be called by a later thread
            raise _none_left(error) from error


def _none_left(error: RuntimeError) -> DeviceError:
    message = (
        f"the system gives this process no more threads ({error}); raise its limits of processes "
        "and memory (ulimit -u, ulimit -v, or the container's), or have fewer run at the same time"
    )
    return DeviceError(message)
