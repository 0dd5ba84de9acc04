"""A queue of bounded length in front of threads, each with a net of its own.

A thread takes the oldest request, and with it those that are of its shapes, as far as they fit into
a batch; it may wait a little for more.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from demitasse.core.log import get_logger
from demitasse.inference.serving.model import Model, Runner, Work

__all__ = ["BusyError", "FailedError", "Queue"]

log = get_logger(__name__)

Arrays = dict[str, np.ndarray]


class BusyError(Exception):
    """So many requests wait already that another one is not taken."""


class FailedError(Exception):
    """A net has failed, which is not the client's to know of; the log says why."""


@dataclass(eq=False)
class _Job:
    work: Work
    result: Future[Arrays] = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)

    @property
    def key(self) -> object:
        """What is equal for requests that can be joined."""
        return {name: array.shape[1:] for name, array in self.work.inputs.items()}


class Queue:
    """Requests that wait for a model, and the threads that answer them.

    Args:
        model: The model.
        workers: How many threads there are.
        max_delay: How long a request waits for others to join it, in seconds.
        max_queue: How many requests may wait.
        ran: Told of each batch: how many requests and rows it had, and how many seconds it took.
    """

    def __init__(
        self,
        model: Model,
        *,
        workers: int = 1,
        max_delay: float = 0.0,
        max_queue: int = 128,
        ran: Callable[[int, int, float], None] = lambda requests, rows, seconds: None,
    ) -> None:
        self.model = model
        self._max_delay, self._max_queue, self._ran = max_delay, max_queue, ran
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        runners = [model.runner() for _ in range(workers)]
        self._threads = [
            threading.Thread(target=self._serve, args=(runner,), name=f"{model.name}-{i}")
            for i, runner in enumerate(runners)
        ]
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        """Return how many requests wait."""
        return len(self._jobs)

    def put(self, work: Work) -> Future[Arrays]:
        """Queue a request; the outputs come as the result.

        Raises:
            BusyError: The queue is full, or closed.
        """
        job = _Job(work)
        with self._changed:
            if self._closed or len(self._jobs) >= self._max_queue:
                message = (
                    "the server is stopping"
                    if self._closed
                    else f"{len(self._jobs)} requests wait for model {self.model.name!r} already"
                )
                raise BusyError(message)
            self._jobs.append(job)
            self._changed.notify_all()
        return job.result

    def close(self) -> None:
        """Answer what waits, and end the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _serve(self, runner: Runner) -> None:
        while batch := self._next():
            jobs = [job for job in batch if job.result.set_running_or_notify_cancel()]
            if jobs:
                begun = time.perf_counter()
                _run(runner, jobs)
                rows = sum(job.work.rows for job in jobs)
                self._ran(len(jobs), rows, time.perf_counter() - begun)

    def _next(self) -> list[_Job]:
        """Wait for a request; return it with those that join it, or nothing at the end."""
        with self._changed:
            while not self._jobs:
                if self._closed:
                    return []
                self._changed.wait()
            batch = [self._jobs.popleft()]
            if self.model.joins:
                self._join(batch)
            return batch

    def _join(self, batch: list[_Job]) -> None:
        until = batch[0].arrived + self._max_delay
        while True:
            room = self.model.max_batch - sum(job.work.rows for job in batch)
            for job in list(self._jobs):
                if job.work.rows <= room and job.key == batch[0].key:
                    self._jobs.remove(job)
                    batch.append(job)
                    room -= job.work.rows
            left = until - time.monotonic()
            if room <= 0 or left <= 0 or self._closed:
                return
            self._changed.wait(left)


def _run(runner: Runner, jobs: Sequence[_Job]) -> None:
    """Run a batch; if it fails, each request alone, so that none fails for another."""
    try:
        found = runner.run([job.work for job in jobs])
    except Exception as error:
        if len(jobs) > 1:
            for job in jobs:
                _run(runner, [job])
            return
        log.exception("A request failed")
        jobs[0].result.set_exception(FailedError(str(error)))
    else:
        for job, outputs in zip(jobs, found, strict=True):
            job.result.set_result(outputs)
