"""Batches made ahead of time, in a thread of their own.

Source: Caffe, ``src/caffe/layers/base_data_layer.cpp`` (``BasePrefetchingDataLayer``).
"""

from __future__ import annotations

import atexit
import math
import weakref
from collections.abc import Callable
from contextlib import closing
from typing import Protocol

import numpy as np

from demitasse.data.blocking_queue import BlockingQueue
from demitasse.data.internal_thread import InternalThread

__all__ = ["Batch", "BatchSource", "Prefetcher"]

HostMemory = Callable[[int, str], np.ndarray]
"""``empty_host`` of a backend: one-dimensional host memory by size and dtype."""


class Batch:
    """Host memory for one batch, used again and again.

    Args:
        memory: Where memory comes from.
        dtype: Of all its arrays.

    Attributes:
        arrays: What goes to each top.
        position: Records that have been used once this batch has been.
        skipped: Broken records that were skipped until then.
        last: Whether the last record of all is the last one of this batch, for sources that end a
            batch there.
    """

    def __init__(self, memory: HostMemory, dtype: str) -> None:
        self.arrays: list[np.ndarray] = []
        self.position = self.skipped = 0
        self.last = False
        self._memory, self._dtype = memory, dtype
        self._flat: list[np.ndarray] = []

    def array(self, index: int, shape: tuple[int, ...]) -> np.ndarray:
        """Return the array for top ``index``, to be overwritten completely."""
        size = math.prod(shape)
        while len(self.arrays) <= index:
            self._flat.append(self._memory(0, self._dtype))
            self.arrays.append(self._flat[-1])
        if self._flat[index].size < size:
            self._flat[index] = self._memory(size, self._dtype)
        self.arrays[index] = self._flat[index][:size].reshape(shape)
        return self.arrays[index]


class BatchSource(Protocol):
    """What fills batches."""

    def fill(self, batch: Batch) -> None:
        """Make the next batch."""

    def close(self) -> None:
        """Let go of files."""


class Prefetcher:
    """Fills batches in a thread, some ahead of their use.

    Args:
        source: What fills them; belongs to the thread once it is started, and is closed by it.
        batches: The batches to go round.
        name: What the thread is called.
        log_on_wait: What to log when there is no full batch and somebody wants one.
        seed: Seed of the thread.
        rank: Which of the ranks this is.
        ranks: How many there are.
    """

    def __init__(
        self,
        source: BatchSource,
        batches: list[Batch],
        *,
        name: str = "prefetch",
        log_on_wait: str = "",
        seed: int = 0,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self._source, self._log_on_wait = source, log_on_wait
        self._free: BlockingQueue[Batch] = BlockingQueue(f"queue of free batches of {name}")
        self._full: BlockingQueue[Batch] = BlockingQueue(f"queue of full batches of {name}")
        for batch in batches:
            self._free.push(batch)
        queues = (self._free, self._full)
        self._thread = InternalThread(
            self._work, queues, name=name, seed=seed, rank=rank, ranks=ranks
        )
        self._started = False

    @property
    def waited(self) -> float:
        """Time spent waiting for full batches so far, in seconds."""
        return self._full.waited

    def start(self) -> None:
        """Start filling batches."""
        self._started = True
        _running.add(self)
        self._thread.start()

    def next(self) -> Batch:
        """Return the next full batch; it is the caller's until ``recycle``.

        Raises:
            DataError: The source cannot fill it.
        """
        return self._full.pop(self._log_on_wait)

    def recycle(self, batch: Batch) -> None:
        """Give a batch back, to be filled again."""
        if not self._free.closed:
            self._free.push(batch)

    def close(self) -> None:
        """Stop the thread, wait for its end and close the source; may be called twice."""
        self._thread.stop()
        if not self._started:
            self._source.close()

    def abandon(self) -> None:
        """Ask the thread to stop and close the source, without waiting for it.

        This is what a garbage collection may do, in whatever thread it happens to run.
        """
        self._thread.ask_to_stop()

    def _work(self, thread: InternalThread) -> None:
        with closing(self._source):  # here, so that it is never closed while it is used
            while not thread.must_stop():
                batch = self._free.pop()
                self._source.fill(batch)
                self._full.push(batch)


_running: weakref.WeakSet[Prefetcher] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Let no thread outlive the interpreter."""
    for prefetcher in list(_running):
        prefetcher.close()
