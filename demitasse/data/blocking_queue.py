"""BlockingQueue: hands items from one thread to another.

Source: Caffe, ``src/caffe/util/blocking_queue.cpp``; closing is ours.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections import deque
from typing import Generic, NoReturn, TypeVar

from demitasse.errors import DataError, DemitasseError

__all__ = ["BlockingQueue", "QueueClosed"]

T = TypeVar("T")

logger = logging.getLogger(__name__)

LOG_EVERY = 1000
"""Of this many waits, one is logged."""


class QueueClosed(DataError):  # noqa: N818 - an event as much as an error
    """The queue was closed: nobody will push into it any more."""


class BlockingQueue(Generic[T]):
    """An unbounded first-in, first-out queue that any number of threads may use.

    A closed queue takes nothing more. What is in it can still be popped; after that every pop
    raises, and whoever was waiting wakes up and raises too.

    Args:
        name: What messages call it.

    Attributes:
        waited: Time that pops and peeks have spent waiting so far, in seconds.
    """

    def __init__(self, name: str = "queue") -> None:
        self.name = name
        self.waited = 0.0
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._error: BaseException | None = None
        self._waits = 0

    def push(self, item: T) -> None:
        """Put ``item`` at the end and wake one waiter.

        Raises:
            QueueClosed: The queue is closed.
        """
        with self._changed:
            if self._closed:
                self._raise_closed()
            self._items.append(item)
            self._changed.notify()

    def try_pop(self) -> T | None:
        """Take the first item, or return None when there is none now."""
        with self._changed:
            return self._items.popleft() if self._items else None

    def pop(self, log_on_wait: str = "") -> T:
        """Take the first item, waiting for one if need be.

        Args:
            log_on_wait: What to log when there is a wait (one wait in 1000 is logged).

        Raises:
            QueueClosed: The queue is empty and closed; or the error it was closed with.
        """
        with self._changed:
            self._await_item(log_on_wait)
            return self._items.popleft()

    def try_peek(self) -> T | None:
        """Return the first item and leave it there, or None when there is none now."""
        with self._changed:
            return self._items[0] if self._items else None

    def peek(self) -> T:
        """Return the first item and leave it there, waiting for one if need be.

        Raises:
            QueueClosed: The queue is empty and closed; or the error it was closed with.
        """
        with self._changed:
            self._await_item("")
            item = self._items[0]
            self._changed.notify()  # another waiter may take what we only looked at
            return item

    def size(self) -> int:
        """Return how many items are in the queue."""
        with self._changed:
            return len(self._items)

    def close(self, error: BaseException | None = None) -> None:
        """Refuse further pushes and wake every waiter.

        Args:
            error: What pops shall raise once the queue is empty, instead of QueueClosed. Of
                several calls the first error counts.
        """
        with self._changed:
            self._closed = True
            if self._error is None:
                self._error = error
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        """Whether the queue was closed."""
        with self._changed:
            return self._closed

    def _await_item(self, log_on_wait: str) -> None:
        if self._items:
            return
        if log_on_wait:
            if self._waits % LOG_EVERY == 0:
                logger.info(log_on_wait)
            self._waits += 1
        began = time.monotonic()
        while not self._items:
            if self._closed:
                self._raise_closed()
            self._changed.wait()
        self.waited += time.monotonic() - began

    def _raise_closed(self) -> NoReturn:
        if isinstance(self._error, DemitasseError):
            raise copy.copy(self._error) from self._error  # each pop may add its own place
        if self._error is not None:
            raise self._error
        message = f"the {self.name} is closed: the thread that served it has been stopped"
        raise QueueClosed(message)
