"""Threads in place of processes: one for each GPU of a machine.

Results are those of processes. The interpreter runs one thread at a time, so processes are faster
if queueing work takes longer than the work.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Any, TypeVar

import numpy as np

from demitasse.core.deprecated import deprecated_names
from demitasse.errors import ErrorCode, ParallelError
from demitasse.training.distributed.group import Value

Result = TypeVar("Result")

ENDING = 5.0  # seconds from the failure of a thread until the others must have ended


class _Exchange:
    """Values that threads exchange, and their barrier."""

    def __init__(self, size: int, timeout: float) -> None:
        self.size, self.timeout = size, timeout
        self.barrier = threading.Barrier(size)
        self.arrived = [0] * size
        self.values: list[object] = [None] * size


def connected_threads(size: int, timeout: float = 60.0) -> list[ThreadCommunicator]:
    """Return connected communicators, one for each thread, that wait ``timeout`` seconds."""
    exchange = _Exchange(size, timeout)
    return [ThreadCommunicator(exchange, rank) for rank in range(size)]


def run_in_threads(
    size: int, work: Callable[[ThreadCommunicator], Result], timeout: float = 300.0
) -> list[Result]:
    """Run a function in several threads at once, which communicate as processes do.

    The first thread is the calling one. Results are returned by rank. The first exception of a
    thread ends the other threads, and is raised. A thread waits ``timeout`` seconds for the others.
    """
    members = connected_threads(size, timeout)
    results: dict[int, Result] = {}
    failures: list[BaseException] = []

    def run(member: ThreadCommunicator) -> None:
        try:
            results[member.rank] = work(member)
        except BaseException as error:
            failures.append(error)
            member.abort(1)

    others = [
        threading.Thread(
            target=copy_context().run, args=(run, member), name=f"rank {member.rank}", daemon=True
        )
        for member in members[1:]
    ]
    for thread in others:
        thread.start()
    run(members[0])
    for thread in others:
        thread.join(ENDING if failures else None)
    if failures:
        raise min(failures, key=lambda error: isinstance(error, ParallelError))
    return [results[rank] for rank in range(size)]


class ThreadCommunicator:
    """Communicator of one thread."""

    name, in_threads = "threads", True

    def __init__(self, exchange: _Exchange, rank: int) -> None:
        self._exchange, self.rank, self.size = exchange, rank, exchange.size
        self.local_rank, self.timeout = rank, exchange.timeout

    def allgather_bytes(self, note: bytes) -> list[bytes]:
        notes: list[bytes] = self._all(note, list)
        return notes

    def broadcast_object(self, value: Value, timeout_factor: float = 1.0) -> Value:
        first: Value = self._all(value, lambda values: copy.deepcopy(values[0]), timeout_factor)
        return first

    def broadcast(self, array: np.ndarray) -> None:
        def copy_first(values: Sequence[object]) -> None:
            if self.rank:
                array[...] = values[0]

        self._all(array, copy_first)

    def alltoall(self, parts: Sequence[np.ndarray], sizes: Sequence[int]) -> list[np.ndarray]:
        received: list[np.ndarray] = self._all(
            parts, lambda values: [np.array(theirs[self.rank]) for theirs in values]
        )
        got = [array.size for array in received]
        if got != list(sizes):
            message = f"process {self.rank} got arrays of {got} elements, expected {list(sizes)}"
            raise ParallelError(message, code=ErrorCode.COUNT_MISMATCH, rank=self.rank)
        return received

    def allgather(self, part: np.ndarray, whole: np.ndarray, bounds: Sequence[int]) -> None:
        for rank, array in enumerate(self._copies(part)):
            whole[bounds[rank] : bounds[rank + 1]] = array

    def allreduce(self, array: np.ndarray) -> None:
        array[...] = np.sum(self._copies(array), axis=0)

    def abort(self, code: int) -> None:
        del code
        self._exchange.barrier.abort()

    def _copies(self, value: np.ndarray) -> list[np.ndarray]:
        return list(self._all(value, lambda values: [np.array(one) for one in values]))

    def _all(
        self, value: object, read: Callable[[Sequence[Any]], Any], timeout_factor: float = 1.0
    ) -> Any:
        """Publish a value, and read from those of all threads between two barriers."""
        exchange = self._exchange
        exchange.values[self.rank] = value
        exchange.arrived[self.rank] += 1
        try:
            exchange.barrier.wait(exchange.timeout * timeout_factor)
            result = read(exchange.values)
            exchange.barrier.wait(exchange.timeout * timeout_factor)
        except threading.BrokenBarrierError:
            late = [r for r, n in enumerate(exchange.arrived) if n < exchange.arrived[self.rank]]
            message = f"process {', '.join(map(str, late)) or 'unknown'} did not arrive in time"
            raise ParallelError(message, code=ErrorCode.TIMEOUT, late=late) from None
        return result


__getattr__ = deprecated_names(__name__, {"together": "run_in_threads"})
