"""Dynamic batching: a bounded queue of requests, and worker threads, each with its own net.

A worker takes the oldest request and later requests with the same shapes, up to the largest batch;
it may wait for more requests.
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
from demitasse.inference.serving.model import Model, PreparedRequest, Runner

__all__ = ["BusyError", "Queue", "RunError"]

log = get_logger(__name__)

Arrays = dict[str, np.ndarray]


class BusyError(Exception):
    """The queue is full."""


class RunError(Exception):
    """A net failed; the log contains the cause, which clients do not receive."""


@dataclass(eq=False)
class _Job:
    request: PreparedRequest
    result: Future[Arrays] = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)

    @property
    def key(self) -> object:
        """Row shapes by input, which are equal in requests of one batch."""
        return {name: array.shape[1:] for name, array in self.request.inputs.items()}


class Queue:
    """Queued requests of a model, and its worker threads.

    Args:
        model: The model.
        workers: Number of threads.
        max_delay: Time that a request waits for others to fill the batch, in seconds.
        max_queue: Largest number of queued requests.
        on_batch: Called after each batch with its requests, rows and seconds.
    """

    def __init__(
        self,
        model: Model,
        *,
        workers: int = 1,
        max_delay: float = 0.0,
        max_queue: int = 128,
        on_batch: Callable[[int, int, float], None] = lambda requests, rows, seconds: None,
    ) -> None:
        self.model = model
        self._max_delay, self._max_queue, self._on_batch = max_delay, max_queue, on_batch
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
        """Return the number of queued requests."""
        return len(self._jobs)

    def put(self, request: PreparedRequest) -> Future[Arrays]:
        """Queue a request; return its future outputs.

        Raises:
            BusyError: The queue is full, or closed.
        """
        job = _Job(request)
        with self._changed:
            if self._closed or len(self._jobs) >= self._max_queue:
                message = (
                    "the server is stopping"
                    if self._closed
                    else f"{len(self._jobs)} requests are queued for model {self.model.name!r}"
                )
                raise BusyError(message)
            self._jobs.append(job)
            self._changed.notify_all()
        return job.result

    def close(self) -> None:
        """Run the queued requests, and end the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _serve(self, runner: Runner) -> None:
        while batch := self._next():
            jobs = [job for job in batch if job.result.set_running_or_notify_cancel()]
            if jobs:
                start = time.perf_counter()
                _run(runner, jobs)
                rows = sum(job.request.rows for job in jobs)
                self._on_batch(len(jobs), rows, time.perf_counter() - start)

    def _next(self) -> list[_Job]:
        """Wait for a request; return its batch, or an empty list after ``close``."""
        with self._changed:
            while not self._jobs:
                if self._closed:
                    return []
                self._changed.wait()
            batch = [self._jobs.popleft()]
            if self.model.can_batch:
                self._fill(batch)
            return batch

    def _fill(self, batch: list[_Job]) -> None:
        until = batch[0].arrived + self._max_delay
        while True:
            room = self.model.max_batch - sum(job.request.rows for job in batch)
            for job in list(self._jobs):
                if job.request.rows <= room and job.key == batch[0].key:
                    self._jobs.remove(job)
                    batch.append(job)
                    room -= job.request.rows
            left = until - time.monotonic()
            if room <= 0 or left <= 0 or self._closed:
                return
            self._changed.wait(left)


def _run(runner: Runner, jobs: Sequence[_Job]) -> None:
    """Run a batch; if it fails, run each request alone, to isolate the failure."""
    try:
        found = runner.run([job.request for job in jobs])
    except Exception as error:
        if len(jobs) > 1:
            for job in jobs:
                _run(runner, [job])
            return
        log.exception("A request failed")
        jobs[0].result.set_exception(RunError(str(error)))
    else:
        for job, outputs in zip(jobs, found, strict=True):
            job.result.set_result(outputs)
