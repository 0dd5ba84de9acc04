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

log = get_logger(__name__)

Arrays = dict[str, np.ndarray]

RETRY = 1.0
"""Seconds between trials of a net that has failed."""


class BusyError(Exception):
    """The queue is full."""


class RunError(Exception):
    """A net failed; the log contains the cause, which clients do not receive."""


@dataclass(eq=False)
class _Job:
    request: PreparedRequest
    result: Future[Arrays] = field(default_factory=Future)
    arrived: float = field(default_factory=time.perf_counter)

    @property
    def key(self) -> object:
        """Row shapes by input, which are equal in requests of one batch."""
        return {name: array.shape[1:] for name, array in self.request.inputs.items()}


class _Worker:
    """State of a worker thread.

    Attributes:
        ready: True if the net ran on zeros, or a request, and has not failed on zeros since.
        tried: Set once the net has run or failed for the first time.
        ended: True once the thread has ended.
    """

    def __init__(self) -> None:
        self.ready = self.ended = False
        self.tried = threading.Event()

    def check(self, model: Model, runner: Runner) -> None:
        """Run the net on zeros."""
        try:
            runner.warm_up(model.max_batch, can_batch=model.can_batch)
        except Exception:
            log.exception("Model %r fails on zeros, and is not ready", model.name)
            self.ready = False
        else:
            self.ready = True
        self.tried.set()

    def end(self) -> None:
        """Note the end of the thread."""
        self.ready, self.ended = False, True
        self.tried.set()


class Queue:
    """Queued requests of a model, and its worker threads.

    Args:
        model: The model.
        workers: Number of threads.
        max_delay: Time that a request waits for others to fill the batch, in seconds.
        max_queue: Largest number of queued requests.
        on_batch: Called after each batch with its requests, rows, seconds, and the seconds that its
            requests were queued, added up.
    """

    def __init__(
        self,
        model: Model,
        *,
        workers: int = 1,
        max_delay: float = 0.0,
        max_queue: int = 128,
        on_batch: Callable[[int, int, float, float], None] = lambda *counts: None,
    ) -> None:
        self.model = model
        self._max_delay, self._max_queue, self._on_batch = max_delay, max_queue, on_batch
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        runners = [model.runner() for _ in range(workers)]
        self._workers = [_Worker() for _ in runners]
        self._threads = [
            threading.Thread(target=self._work, args=(runner, worker), name=f"{model.name}-{i}")
            for i, (runner, worker) in enumerate(zip(runners, self._workers, strict=True))
        ]
        for thread in self._threads:
            thread.start()
        for worker in self._workers:
            worker.tried.wait()

    @property
    def ready(self) -> bool:
        """True if every worker has run its net, and none has failed on zeros or ended since."""
        return not self._closed and all(worker.ready for worker in self._workers)

    def config(self) -> dict[str, object]:
        """Return Triton's configuration of the model."""
        delay = {"max_queue_delay_microseconds": round(self._max_delay * 1e6)}
        return {
            **self.model.config(),
            **({"dynamic_batching": delay} if self.model.can_batch else {}),
            "instance_group": [{"kind": "KIND_AUTO", "count": len(self._workers)}],
        }

    def __len__(self) -> int:
        """Return the number of queued requests."""
        return len(self._jobs)

    def put(self, request: PreparedRequest) -> Future[Arrays]:
        """Queue a request; return its future outputs.

        Raises:
            BusyError: The queue is full, or closed.
            RunError: All workers have ended.
        """
        job = _Job(request)
        with self._changed:
            if not self._closed and all(worker.ended for worker in self._workers):
                message = f"all workers of model {self.model.name!r} have ended"
                raise RunError(message)
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

    def _work(self, runner: Runner, worker: _Worker) -> None:
        """Run requests until the queue is closed; fail them if the thread ends before."""
        batch: list[_Job] = []
        try:
            worker.check(self.model, runner)
            while (found := self._next(worker)) is not None:
                batch = [job for job in found if job.result.set_running_or_notify_cancel()]
                failed = False
                if batch:
                    start = time.perf_counter()
                    results = _run(runner, batch)
                    rows = sum(job.request.rows for job in batch)
                    queued = sum(start - job.arrived for job in batch)
                    self._on_batch(len(batch), rows, time.perf_counter() - start, queued)
                    failed = _deliver(batch, results)
                if failed or not worker.ready:
                    worker.check(self.model, runner)
        except BaseException:  # a layer may raise SystemExit
            log.exception("A worker of model %r ended", self.model.name)
        finally:
            with self._changed:
                worker.end()
                if all(one.ended for one in self._workers):
                    batch += self._jobs
                    self._jobs.clear()
            for job in batch:
                if not job.result.done():
                    job.result.set_exception(RunError("the worker ended"))

    def _next(self, worker: _Worker) -> list[_Job] | None:
        """Wait for a request; return its batch, or None after ``close``.

        A worker whose net has failed gets an empty batch after a while, to try the net again.
        """
        with self._changed:
            while not self._jobs:
                if self._closed:
                    return None
                if not self._changed.wait(None if worker.ready else RETRY):
                    return []
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
            left = until - time.perf_counter()
            if room <= 0 or left <= 0 or self._closed:
                break
            self._changed.wait(left)
        rows = sum(job.request.rows for job in batch)
        while len(batch) > 1 and not _is_prepared(rows):
            last = batch.pop()
            rows -= last.request.rows
            self._jobs.appendleft(last)
            self._changed.notify()


def _is_prepared(rows: int) -> bool:
    """Return whether joined requests may have so many rows.

    A net stays prepared for 16 shapes. Up to 8 rows, powers of two, and three times powers of two
    are 16 numbers up to 128, and no batch loses more than a third of its rows.
    """
    odd = rows // 3 if rows % 3 == 0 else rows
    return rows <= 8 or odd & (odd - 1) == 0


def _run(runner: Runner, jobs: Sequence[_Job]) -> list[Arrays | RunError]:
    """Run a batch; if it fails, run each request alone, to isolate the failure."""
    try:
        return [*runner.run([job.request for job in jobs])]
    except Exception as error:
        if len(jobs) > 1:
            return [result for job in jobs for result in _run(runner, [job])]
        log.exception("A request failed")
        return [RunError(str(error))]


def _deliver(jobs: Sequence[_Job], results: Sequence[Arrays | RunError]) -> bool:
    """Set the results of requests; return True if a request failed."""
    for job, result in zip(jobs, results, strict=True):
        if isinstance(result, RunError):
            job.result.set_exception(result)
        else:
            job.result.set_result(result)
    return any(isinstance(result, RunError) for result in results)
