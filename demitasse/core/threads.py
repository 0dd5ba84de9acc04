"""Threads that report failed starts, and blocks that defer Ctrl-C."""

import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import FrameType
from typing import Any, ClassVar, ParamSpec, Self, TypeVar

from demitasse.core.config import settings
from demitasse.core.host import cores
from demitasse.errors import DeviceError, ErrorCode

LARGE_STACK = 64
"""MiB of the stack of a thread above which the error for lack of threads names that limit."""

P = ParamSpec("P")
T = TypeVar("T")


def wanted_threads(most: int | None = None) -> int:
    """Return the setting ``threads``, or the number of usable cores, at most ``most``.

    The setting may exceed that bound.
    """
    present = cores()
    return int(settings.get_often("threads")) or (present if most is None else min(most, present))


def start(thread: threading.Thread) -> None:
    """Start a thread; raise a DeviceError if the system refuses another."""
    try:
        thread.start()
    except RuntimeError as error:
        raise no_threads(error) from error


def check_interrupt() -> None:
    """Check that an interrupt does not come from OpenBLAS, which lacks threads.

    OpenBLAS interrupts the process, as Ctrl-C does, if its threads do not start when NumPy is
    imported.

    Raises:
        DeviceError: The system refuses to start a thread.
    """
    if "numpy" not in sys.modules:
        thread = threading.Thread(target=lambda: None, daemon=True)
        start(thread)
        thread.join()


class Pool(ThreadPoolExecutor):
    """A thread pool that shuts down, without running queued calls, when a thread fails to start."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue a call; raise a DeviceError if the system refuses another thread."""
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError as error:
            self.shutdown(cancel_futures=True)  # otherwise a later thread would run the call
            raise no_threads(error) from error


def no_threads(error: object) -> DeviceError:
    """Return the error for a thread that the system refuses."""
    message = (
        f"the system gives this process no more threads ({error}); raise its limits of processes "
        "and memory (ulimit -u, ulimit -v, or the container's), or run fewer threads"
    )
    stack = _stack_size() >> 20
    if stack > LARGE_STACK:
        message += f"; each thread reserves {stack} MiB for its stack, lower that limit (ulimit -s)"
    return DeviceError(message, code=ErrorCode.LIMIT, resource="threads")


def _stack_size() -> int:
    """Return the bytes that the system reserves for the stack of a thread; 0 for no limit."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    size, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return 0 if size == resource.RLIM_INFINITY else size


class Uninterrupted:
    """Defer Ctrl-C to the end of a ``with`` block, for short work that must be completed.

    Python interrupts the main thread only; in other threads the block does nothing, as does a block
    within another.
    """

    _deferred: ClassVar[bool] = False
    """True in a block of the main thread."""

    def __enter__(self) -> Self:
        """Replace the handler of SIGINT."""
        self._received: tuple[int, FrameType | None] | None = None
        self._previous: Any = None
        if not Uninterrupted._deferred and threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):
                signal.signal(signal.SIGINT, self._record)
                self._previous, Uninterrupted._deferred = handler, True
        return self

    def __exit__(self, *exception: object) -> None:
        """Restore the handler, and call it if a signal was received."""
        if self._previous is not None:
            Uninterrupted._deferred = False
            signal.signal(signal.SIGINT, self._previous)
            if self._received is not None:
                self._previous(*self._received)

    def _record(self, number: int, frame: FrameType | None) -> None:
        self._received = number, frame
