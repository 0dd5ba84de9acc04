"""Thread pools for the images of a batch."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from typing import TypeVar

from demitasse.core.host import cores
from demitasse.core.threads import Pool
from demitasse.errors import DeviceError

THREADS = min(8, cores())  # largest number of threads of a pool
AHEAD = 8  # results per thread that may wait in ``map_ahead``

Item = TypeVar("Item")
Result = TypeVar("Result")


class Threads:
    """Pool of threads, started at first use."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pool: Pool | None = None
        self._process = os.getpid()

    def map(self, work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Return the results for items, in order, or raise the first exception of ``work``."""
        items = list(items)
        if len(items) < 2 or THREADS < 2:
            return [work(item) for item in items]
        if self._pool is None or self._process != os.getpid():  # threads do not survive a fork
            self._pool, self._process = Pool(THREADS, self._name), os.getpid()
        try:
            results = self._pool.map(work, items)
        except DeviceError:
            self._pool = None
            raise
        return list(results)

    def close(self) -> None:
        """Stop the threads; a later use starts new ones."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def map_ahead(
    work: Callable[[Item], Result], items: Iterable[Item], threads: int
) -> Generator[Result]:
    """Yield the results for items, in order, while threads work on the next items."""
    if threads < 2:
        yield from map(work, items)
        return
    pool = Pool(threads, "map_ahead")
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
