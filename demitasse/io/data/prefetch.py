"""Prefetching: batches made in advance by a thread.

Source: Caffe, ``src/caffe/layers/base_data_layer.cpp`` (``BasePrefetchingDataLayer``).
"""

import atexit
import contextvars
import copy
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from contextlib import closing
from queue import Empty, SimpleQueue

from demitasse.core.threads import start
from demitasse.errors import DataError, DemitasseError, ErrorCode
from demitasse.io.data.sources.source import Batch, BatchSource

logger = logging.getLogger(__name__)

LOG_EVERY = 1000  # one in so many waits is logged


class PrefetcherClosed(DataError):  # noqa: N818 - an event as much as an error
    """The prefetching thread was stopped; there are no further batches."""


class Prefetcher:
    """Fills batches in a thread, in advance.

    Batches circulate through two queues: free batches to the thread, full batches back; None marks
    the end. If the source fails, the batches filled before are delivered first, then every ``next``
    raises its error. The thread inherits the context variables of ``start``, e.g. the device.

    Args:
        source: Source of batches; used and closed by the thread after ``start``.
        log_on_wait: Text to log when ``next`` has to wait (once per 1000 waits).
        others: Called before each batch is filled; its batches are delivered first.

    Attributes:
        waited: Total time ``next`` has waited for full batches, in seconds.
    """

    def __init__(
        self, source: BatchSource, batches: list[Batch], *, name: str = "prefetch",
        log_on_wait: str = "", others: Callable[[], Iterable[Batch]] = tuple,
    ) -> None:  # fmt: skip
        self.waited = 0.0
        self._source, self._name, self._log_on_wait = source, name, log_on_wait
        self._others = others
        self._waits = 0
        # SimpleQueue is reentrant: a garbage collection may call ``put`` inside ``put``.
        self._free: SimpleQueue[Batch | None] = SimpleQueue()
        self._full: SimpleQueue[Batch | None] = SimpleQueue()
        for batch in batches:
            self._free.put(batch)
        self._stopped = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def start(self) -> None:
        """Start the thread; call once. A DeviceError if no thread can be started."""
        context = contextvars.copy_context()
        # A daemon thread does not delay the end of the interpreter.
        self._thread = threading.Thread(
            target=context.run, args=(self._work,), name=self._name, daemon=True
        )
        _running.add(self)
        self._process = os.getpid()
        start(self._thread)

    @property
    def is_forked_copy(self) -> bool:
        """Return True if the thread belongs to the parent of a fork."""
        return self._process != os.getpid()

    def next(self) -> Batch:
        """Return the next full batch; return it with ``recycle`` after use.

        A DataError if the source failed, or the thread was stopped.
        """
        try:
            batch = self._full.get_nowait()
        except Empty:
            batch = self._wait()
        if batch is not None:
            return batch
        self._full.put(None)  # for further calls
        if isinstance(self._error, DemitasseError):
            raise copy.copy(self._error) from self._error  # callers may add a place
        if self._error is not None:
            raise self._error
        message = f"{self._name} has been stopped"
        raise PrefetcherClosed(message, code=ErrorCode.BAD_STATE)

    def ready(self) -> Batch | None:
        """Return the next full batch, or None if none is ready."""
        try:
            batch = self._full.get_nowait()
        except Empty:
            return None
        if batch is None:
            self._full.put(None)
        return batch

    def recycle(self, batch: Batch) -> None:
        """Return a batch to be filled again."""
        self._free.put(batch)

    def close(self) -> None:
        """Stop the thread, join it and close the source; may be called twice."""
        self.abandon()
        if self._thread is None or self._thread.ident is None:  # never started
            self._source.close()
            self._full.put(None)
        else:
            self._thread.join()

    def abandon(self) -> None:
        """Stop the thread and close the source, without joining.

        A finalizer may call this in any thread.
        """
        self._stopped = True
        self._free.put(None)  # wakes the thread

    def _wait(self) -> Batch | None:
        if self._log_on_wait:
            if self._waits % LOG_EVERY == 0:
                logger.info(self._log_on_wait)
            self._waits += 1
        began = time.perf_counter()
        batch = self._full.get()
        self.waited += time.perf_counter() - began
        return batch

    def _work(self) -> None:
        try:
            with closing(self._source):  # closed by the thread that uses it
                while (batch := self._free.get()) is not None and not self._stopped:
                    for other in self._others():
                        self._full.put(other)
                    self._source.fill(batch)
                    self._full.put(batch)
        except BaseException as error:  # re-raised by ``next``
            if not self._stopped:
                self._error = error
        finally:
            self._full.put(None)


_running: weakref.WeakSet[Prefetcher] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Stop all threads before the interpreter ends."""
    for prefetcher in list(_running):
        prefetcher.close()
