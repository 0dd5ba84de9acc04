"""Dynamic batching: a bounded queue of requests, and worker threads, each with its own net.

A worker takes the oldest request and later requests with the same shapes, up to the largest batch;
it may wait for more requests. A net whose passes are short runs in the thread of the event loop
instead: waking a thread, and the event loop again, would take longer than the pass.
"""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from demitasse.core.log import get_logger
from demitasse.inference.cards.predictor import Arrays
from demitasse.inference.serving.model import Model, PreparedRequest, Runner

log = get_logger(__name__)

RETRY = 1.0
"""Seconds between trials of a net that has failed."""

LONG = 1.0
"""Seconds of a first pass, which prepares the net, after which no further ones are timed."""

SHORT = 0.004
"""Mean seconds of passes in the event loop, for which other connections wait."""

WEIGHT = 1 / 16
"""Weight of the last pass in the mean: one pass of 16 times ``SHORT`` ends those in the loop."""

WAITING = 1 / 8
"""Share of the time without the processor that counts as time of a pass."""


class BusyError(Exception):
    """The queue is full."""


class RunError(Exception):
    """A net failed; the log contains the cause, which clients do not receive."""


class _Job:
    """A queued request, and its result."""

    def __init__(self, request: PreparedRequest) -> None:
        self.request, self.arrived = request, time.perf_counter()
        # row shapes, which are equal in requests of one batch
        self.key = {name: array.shape[1:] for name, array in request.inputs.items()}
        self.result: Arrays | RunError | None = None
        # set in the event loop after the result; None before the request waits for a thread
        self.done: asyncio.Future[None] | None = None


class _Worker:
    """A worker thread's net and its state."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.ready = False  # the net ran on zeros, or a request, and has not failed on zeros since
        self.ended = False  # of the thread
        self.suspect = True  # the net is to run on zeros before the next request
        self.tried = threading.Event()  # the net has run or failed for the first time
        self.seconds = math.inf  # of a pass on zeros; infinite if it is not short
        self.mean = 2 * SHORT  # moving mean of the seconds of a pass, which begins above SHORT

    def check(self, model: Model) -> None:
        """Run the net on zeros."""
        self.suspect, start = False, time.perf_counter()
        try:
            self.runner.warm_up(model.max_batch, can_batch=model.can_batch)
            if not self.tried.is_set() and time.perf_counter() - start < LONG:
                self.seconds = self.runner.pass_seconds()
        except Exception:
            log.exception("Model %r fails on zeros, and is not ready", model.name)
            self.ready = False
        else:
            self.ready = True
        self.tried.set()


class Queue:
    """Queued requests of a model, and its worker threads.

    A request waits ``max_delay`` seconds for others to fill the batch. ``on_batch`` is called after
    each batch with its requests, rows, seconds, and the sum of the seconds in the queue.
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
        self._in_loop = False  # the event loop runs all requests, and no thread does
        self._workers = [_Worker(model.runner()) for _ in range(workers)]
        waits = max_delay > 0 or self._workers[0].runner.net.device.backend.queues
        self._may_run_in_loop = workers == 1 and not waits  # nor would the event loop wait
        self._threads = [
            threading.Thread(target=self._work, args=(worker,), name=f"{model.name}-{i}")
            for i, worker in enumerate(self._workers)
        ]
        for thread in self._threads:
            thread.start()
        for worker in self._workers:
            worker.tried.wait()

    @property
    def ready(self) -> bool:
        """True if every worker has run its net, and none has failed on zeros or ended since."""
        return not self._closed and all(worker.ready for worker in self._workers)

    @property
    def seconds(self) -> float:
        """Seconds of a pass on zeros, in the slowest worker."""
        return max(worker.seconds for worker in self._workers)

    def reset_plans(self) -> None:
        """Have the nets prepared again at the next pass, under other settings."""
        for worker in self._workers:
            worker.runner.net.execution.passes.reset_plan()

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

    async def run(self, request: PreparedRequest, *, alone: bool = False) -> Arrays:
        """Return the outputs of a request; if the caller is cancelled, what has not begun ends.

        Args:
            request: The request.
            alone: True if no other request may join this one.

        Raises:
            BusyError: The queue is full, or closed.
            RunError: The net failed, or all workers have ended.
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
            if not self._in_loop:
                self._changed.notify_all()
        try:
            if self._in_loop and not alone:
                await asyncio.sleep(0)  # until all requests that have arrived are queued
            while job.result is None and job.done is None:
                if self._run_in_loop():
                    continue
                with self._changed:  # the thread may have left its requests to this loop just now
                    if job.result is None and not (self._in_loop and self._jobs):
                        job.done = asyncio.get_running_loop().create_future()
            if job.done is not None:
                await job.done
        except asyncio.CancelledError:
            with self._changed, suppress(ValueError):
                self._jobs.remove(job)
            raise
        assert job.result is not None
        if isinstance(job.result, RunError):
            raise job.result
        return job.result

    def close(self) -> None:
        """Run the queued requests, and end the threads."""
        with self._changed:
            self._closed = True
            self._in_loop = False
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _run_in_loop(self) -> bool:
        """Run a batch in this thread; return False if worker threads run the requests."""
        [worker, *_] = self._workers
        with self._changed:
            if not self._in_loop or not self._jobs:
                return False
            batch = self._take()
        try:
            self._run(worker, batch)
        except SystemExit:  # from a layer
            log.exception("A request failed")
            self._deliver(batch, [RunError("the net ended")] * len(batch))
            worker.suspect = True
        if worker.suspect or worker.mean >= SHORT:
            with self._changed:
                self._in_loop = False
                self._changed.notify_all()
        return True

    def _run_all_in_loop(self) -> None:
        while self._run_in_loop():
            pass

    def _work(self, worker: _Worker) -> None:
        """Run requests until the queue is closed; fail them if the thread ends before."""
        batch: list[_Job] = []
        try:
            worker.check(self.model)
            while (found := self._next(worker)) is not None:
                batch = found
                if batch:
                    self._run(worker, batch)
                else:
                    worker.check(self.model)
        except BaseException:  # a layer may raise SystemExit
            log.exception("A worker of model %r ended", self.model.name)
        finally:
            with self._changed:
                worker.ready, worker.ended = False, True
                worker.tried.set()
                if all(one.ended for one in self._workers):
                    batch += self._jobs
                    self._jobs.clear()
            left = [job for job in batch if job.result is None]
            self._deliver(left, [RunError("the worker ended")] * len(left))

    def _next(self, worker: _Worker) -> list[_Job] | None:
        """Wait for a request; return its batch, or None after ``close``.

        A worker whose net has failed gets an empty batch, to try the net again.
        """
        with self._changed:
            if worker.mean < SHORT and self._may_run_in_loop and not worker.suspect:
                self._in_loop = True
                for loop in {job.done.get_loop() for job in self._jobs if job.done is not None}:
                    _call(loop, self._run_all_in_loop)
            while not self._jobs or self._in_loop:
                if self._closed:
                    return None
                if worker.suspect:
                    return []
                if not self._changed.wait(None if worker.ready else RETRY):
                    return []
            return [] if worker.suspect else self._take()

    def _take(self) -> list[_Job]:
        """Remove and return the oldest request, with later requests that fit into its batch."""
        batch = [self._jobs.popleft()]
        if not self.model.can_batch:
            return batch
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
            self._changed.notify_all()
        return batch

    def _run(self, worker: _Worker, batch: Sequence[_Job]) -> None:
        start, used = time.perf_counter(), time.thread_time()
        results = _run(worker.runner, batch)
        seconds, used = time.perf_counter() - start, time.thread_time() - used
        rows = sum(job.request.rows for job in batch)
        queued = sum(start - job.arrived for job in batch)
        self._on_batch(len(batch), rows, seconds, queued)
        failed = any(isinstance(result, RunError) for result in results)
        worker.suspect = failed or not worker.ready
        # a thread that waits does so mostly for the processor, as another thread would
        worker.mean += (used + (seconds - used) * WAITING - worker.mean) * WEIGHT
        self._deliver(batch, results)

    def _deliver(self, jobs: Sequence[_Job], results: Sequence[Arrays | RunError]) -> None:
        """Set the results of requests, and wake those that wait, in each event loop at once."""
        with self._changed:
            for job, result in zip(jobs, results, strict=True):
                job.result = result
        waiting = [job.done for job in jobs if job.done is not None]
        for loop in {future.get_loop() for future in waiting}:
            _call(loop, _wake, [one for one in waiting if one.get_loop() is loop])


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *given: object) -> None:
    with suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(function, *given)


def _wake(futures: Sequence[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


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
