"""Batches made ahead of time, in a thread of their own.

Source: Caffe, ``src/caffe/layers/base_data_layer.cpp`` (``BasePrefetchingDataLayer``).
"""

from __future__ import annotations

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
from demitasse.errors import DataError, DemitasseError
from demitasse.io.data.sources.source import Batch, BatchSource

__all__ = ["Prefetcher", "PrefetcherClosed"]

logger = logging.getLogger(__name__)

LOG_EVERY = 1000
"""Of this many waits, one is logged."""


class PrefetcherClosed(DataError):  # noqa: N818 - an event as much as an error
    """The thread was stopped: no batch will be filled any more."""


class Prefetcher:
    """Fills batches in a thread, some ahead of their use.

    Batches circulate through two queues: free ones to the thread, full ones back. In either, None
    stands for the end. When the source fails, the batches filled before are delivered first, then
    its error is raised by every ``next``. The thread sees the context variables of the one that
    called ``start``: the device setting above all.

    Args:
        source: What fills them; belongs to the thread once it is started, and is closed by it.
        batches: The batches that circulate.
        name: What the thread is called.
        log_on_wait: What to log when there is no full batch and somebody wants one (one wait in
            1000 is logged).
        others: Called before each batch is filled; what it returns is delivered ahead of it.

    Attributes:
        waited: Time spent waiting for full batches so far, in seconds.
    """

    def __init__(
        self,
        source: BatchSource,
        batches: list[Batch],
        *,
        name: str = "prefetch",
        log_on_wait: str = "",
        others: Callable[[], Iterable[Batch]] = tuple,
    ) -> None:
        self.waited = 0.0
        self._source, self._name, self._log_on_wait = source, name, log_on_wait
        self._others = others
        self._waits = 0
        # A SimpleQueue may be put into while the same thread is inside it: by a garbage collection.
        self._free: SimpleQueue[Batch | None] = SimpleQueue()
        self._full: SimpleQueue[Batch | None] = SimpleQueue()
        for batch in batches:
            self._free.put(batch)
        self._stopped = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def start(self) -> None:
        """Start filling batches; once.

        Raises:
            DeviceError: No thread can be started.
        """
        context = contextvars.copy_context()
        # A daemon, so that an interpreter that ends while the thread waits is not held up by it.
        self._thread = threading.Thread(
            target=context.run, args=(self._work,), name=self._name, daemon=True
        )
        _running.add(self)
        self._process = os.getpid()
        start(self._thread)

    @property
    def was_left_behind(self) -> bool:
        """Whether the thread belongs to the process that this one was forked from."""
        return self._process != os.getpid()

    def next(self) -> Batch:
        """Return the next full batch; it is the caller's until ``recycle``.

        Raises:
            DataError: The source cannot fill it, or the thread was stopped.
        """
        try:
            batch = self._full.get_nowait()
        except Empty:
            batch = self._wait()
        if batch is not None:
            return batch
        self._full.put(None)  # for the next one who asks
        if isinstance(self._error, DemitasseError):
            raise copy.copy(self._error) from self._error  # each caller may add its own place
        if self._error is not None:
            raise self._error
        message = f"{self._name} has been stopped"
        raise PrefetcherClosed(message)

    def ready(self) -> Batch | None:
        """Return the next full batch if there is one already; it is the caller's then."""
        try:
            batch = self._full.get_nowait()
        except Empty:
            return None
        if batch is None:
            self._full.put(None)
        return batch

    def recycle(self, batch: Batch) -> None:
        """Give a batch back, to be filled again."""
        self._free.put(batch)

    def close(self) -> None:
        """Stop the thread, wait for its end and close the source; may be called twice."""
        self.abandon()
        if self._thread is None or self._thread.ident is None:  # it was never started
            self._source.close()
            self._full.put(None)
        else:
            self._thread.join()

    def abandon(self) -> None:
        """Ask the thread to stop and close the source, without waiting for it.

        This is what a garbage collection may do, in whatever thread it happens to run.
        """
        self._stopped = True
        self._free.put(None)  # wakes the thread if it waits

    def _wait(self) -> Batch | None:
        if self._log_on_wait:
            if self._waits % LOG_EVERY == 0:
                logger.info(self._log_on_wait)
            self._waits += 1
        began = time.monotonic()
        batch = self._full.get()
        self.waited += time.monotonic() - began
        return batch

    def _work(self) -> None:
        try:
            with closing(self._source):  # here, so that it is never closed while it is used
                while (batch := self._free.get()) is not None and not self._stopped:
                    for other in self._others():
                        self._full.put(other)
                    self._source.fill(batch)
                    self._full.put(batch)
        except BaseException as error:  # raised by ``next``
            if not self._stopped:
                self._error = error
        finally:
            self._full.put(None)


_running: weakref.WeakSet[Prefetcher] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Let no thread outlive the interpreter."""
    for prefetcher in list(_running):
        prefetcher.close()
