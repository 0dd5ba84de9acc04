"""Threads that work on the images of one batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["THREADS", "Threads"]

THREADS = min(8, os.cpu_count() or 1)
"""How many there are at most."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class Threads:
    """A pool that is there from its first use until ``close``.

    Args:
        name: What the threads are called.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._pool: ThreadPoolExecutor | None = None
        self._process = os.getpid()

    def map(self, work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Return the results for some items, in their order.

        Raises:
            Exception: What ``work`` raised for the first item for which it did.
        """
        items = list(items)
        if len(items) < 2 or THREADS < 2:
            return [work(item) for item in items]
        if self._pool is None or self._process != os.getpid():  # a fork leaves threads behind
            self._pool, self._process = ThreadPoolExecutor(THREADS, self._name), os.getpid()
        return list(self._pool.map(work, items))

    def close(self) -> None:
        """Let go of the threads; a later use starts others."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
