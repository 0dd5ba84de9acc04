"""Threads that work on the images of one batch."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from typing import TypeVar

from demitasse.core.host import cores
from demitasse.core.threads import Pool
from demitasse.errors import DeviceError

__all__ = ["THREADS", "Threads", "ahead"]

THREADS = min(8, cores())
"""How many there are at most."""

AHEAD = 8
"""Results for each thread that may wait for their turn."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class Threads:
    """A pool that is there from its first use until ``close``.

    Args:
        name: What the threads are called.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._pool: Pool | None = None
        self._process = os.getpid()

    def map(self, work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Return the results for some items, in their order.

        Raises:
            DeviceError: No thread can be started.
            Exception: What ``work`` raised for the first item for which it did.
        """
        items = list(items)
        if len(items) < 2 or THREADS < 2:
            return [work(item) for item in items]
        if self._pool is None or self._process != os.getpid():  # a fork leaves threads behind
            self._pool, self._process = Pool(THREADS, self._name), os.getpid()
        try:
            results = self._pool.map(work, items)
        except DeviceError:
            self._pool = None
            raise
        return list(results)

    def close(self) -> None:
        """Let go of the threads; a later use starts others."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def ahead(work: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Generator[Result]:
    """Yield the results for some items, in their order, while the next ones are worked on.

    Args:
        work: What is done to an item.
        items: The items.
        threads: How many are worked on at the same time; a few more wait to be yielded.

    Raises:
        DeviceError: No thread can be started.
        Exception: What ``work`` raised for the item whose turn it is.
    """
    if threads < 2:
        yield from map(work, items)
        return
    pool = Pool(threads, "ahead")
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > AHEAD * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
