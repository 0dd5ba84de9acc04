"""InternalThread: a worker that can be asked to stop, and whose errors are not lost.

Source: Caffe, ``src/caffe/internal_thread.cpp``.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from typing import Any

from demitasse.data.blocking_queue import BlockingQueue
from demitasse.errors import DemitasseError

__all__ = ["InternalThread"]


class InternalThread:
    """Runs ``entry(thread)`` in a thread of its own.

    The entry asks ``thread.must_stop()`` between pieces of work. It sees the context variables of
    the thread that called ``start``: the device setting above all. When it ends, for whatever
    reason, the queues it serves are closed; when an exception ended it, the one who pops from
    them gets that exception.

    Args:
        entry: The work. Must not refer to an object whose end should stop the thread.
        queues: What the entry pops from or pushes to.
        name: The thread's name, for debuggers and logs.
        seed: Seed of the random numbers used in the thread.
        rank: Which of the ranks this is, from 0.
        ranks: How many ranks train together.
    """

    def __init__(
        self,
        entry: Callable[[InternalThread], None],
        queues: Sequence[BlockingQueue[Any]] = (),
        *,
        name: str = "worker",
        seed: int = 0,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self.name, self.seed, self.rank, self.ranks = name, seed, rank, ranks
        self.error: BaseException | None = None
        self._entry = entry
        self._queues = tuple(queues)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread.

        Raises:
            DemitasseError: It was started before and not stopped since.
        """
        if self._thread is not None:
            message = f"thread {self.name!r} was started already; stop it first"
            raise DemitasseError(message)
        self._stop.clear()
        self.error = None
        context = contextvars.copy_context()
        # A daemon, so that an interpreter that ends while the thread waits is not held up by it.
        self._thread = threading.Thread(
            target=context.run, args=(self._run,), name=self.name, daemon=True
        )
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Ask the thread to stop, and wake it if it waits at a queue."""
        self._stop.set()
        for queue in self._queues:
            queue.close()

    def stop(self) -> None:
        """Ask the thread to stop, wake it if it waits at a queue, and wait until it has ended."""
        self.ask_to_stop()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def must_stop(self) -> bool:
        """Whether the entry should return as soon as it can."""
        return self._stop.is_set()

    def is_started(self) -> bool:
        """Whether the thread is running."""
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._entry(self)
        except BaseException as error:  # it goes to whoever pops
            if not self.must_stop():
                self.error = error
        finally:
            for queue in self._queues:
                queue.close(self.error)
