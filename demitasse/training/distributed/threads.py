"""Threads of one process in place of processes: one for each GPU of a machine.

What they compute is the same as that of processes. The interpreter runs one of them at a time, so
processes are faster where queueing work takes longer than the work.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Any, TypeVar

import numpy as np

from demitasse.errors import ErrorCode, ParallelError
from demitasse.training.distributed.communicator import Value

__all__ = ["Thread", "group", "together"]

Result = TypeVar("Result")

ENDING = 5.0
"""Seconds that threads have to end once one of them has failed."""


class _Board:
    """Where threads put what others take."""

    def __init__(self, size: int, timeout: float) -> None:
        self.size, self.timeout = size, timeout
        self.barrier = threading.Barrier(size)
        self.arrived = [0] * size
        self.values: list[object] = [None] * size


def group(size: int, timeout: float = 60.0) -> list[Thread]:
    """Return connected communicators, one for each thread.

    Args:
        size: How many.
        timeout: Seconds that one waits for the others.
    """
    board = _Board(size, timeout)
    return [Thread(board, rank) for rank in range(size)]


def together(size: int, work: Callable[[Thread], Result], timeout: float = 300.0) -> list[Result]:
    """Do work in several threads at once, which talk to each other as processes do.

    Args:
        size: How many; the first is the calling one.
        work: What each does, with its communicator.
        timeout: Seconds that one waits for the others.

    Returns:
        What each work returned, by rank.

    Raises:
        BaseException: What was raised first; the others end then, too.
    """
    members = group(size, timeout)
    results: dict[int, Result] = {}
    failures: list[BaseException] = []

    def run(member: Thread) -> None:
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


class Thread:
    """The communicator of one thread."""

    name, in_threads = "threads", True

    def __init__(self, board: _Board, rank: int) -> None:
        self._board, self.rank, self.size = board, rank, board.size
        self.local_rank, self.timeout = rank, board.timeout

    def agree(self, note: bytes, patience: float = 1.0) -> list[bytes]:
        found = self._all(note, list, patience)
        return [bytes(one) for one in found if isinstance(one, bytes)]

    def share(self, value: Value, patience: float = 1.0) -> Value:
        shared: Value = self._all(value, lambda values: copy.deepcopy(values[0]), patience)
        return shared

    def broadcast(self, array: np.ndarray) -> None:
        def take(values: Sequence[object]) -> None:
            if self.rank:
                array[...] = values[0]

        self._all(array, take)

    def exchange(self, parts: Sequence[np.ndarray], sizes: Sequence[int]) -> list[np.ndarray]:
        def take(values: Sequence[object]) -> list[np.ndarray]:
            return [np.array(one[self.rank]) for one in values if isinstance(one, list)]

        found: list[np.ndarray] = self._all(list(parts), take)
        if [one.size for one in found] != list(sizes):
            message = f"process {self.rank} got {[one.size for one in found]}, not {list(sizes)}"
            raise ParallelError(message, code=ErrorCode.COUNT_MISMATCH, rank=self.rank)
        return found

    def collect(self, part: np.ndarray, whole: np.ndarray, bounds: Sequence[int]) -> None:
        def take(values: Sequence[object]) -> list[np.ndarray]:
            return [np.array(one) for one in values]

        for rank, one in enumerate(self._all(part, take)):
            whole[bounds[rank] : bounds[rank + 1]] = one

    def add(self, array: np.ndarray) -> None:
        parts = self._all(array, lambda values: [np.array(one) for one in values])
        array[...] = np.sum(parts, axis=0)

    def abort(self, code: int) -> None:
        del code
        self._board.barrier.abort()

    def _all(
        self, value: object, take: Callable[[Sequence[Any]], Any], patience: float = 1.0
    ) -> Any:
        """Give a value to all and take what is needed of everybody's, before anybody goes on."""
        board = self._board
        board.values[self.rank] = value
        board.arrived[self.rank] += 1
        try:
            board.barrier.wait(board.timeout * patience)
            taken = take(board.values)
            board.barrier.wait(board.timeout * patience)
        except threading.BrokenBarrierError:
            late = [r for r, n in enumerate(board.arrived) if n < board.arrived[self.rank]]
            message = f"process {', '.join(map(str, late)) or 'unknown'} did not come in time"
            raise ParallelError(message, code=ErrorCode.TIMEOUT, late=late) from None
        return taken
