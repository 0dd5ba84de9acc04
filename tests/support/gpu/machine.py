"""The GPUs of the stand-in: which is current, what waits in their queues, what memory they have.

Work is queued and runs when something waits for it, not before: on a GPU it may run as late as
that, so whoever reads or overwrites too early reads what was there before.
"""

from __future__ import annotations

import itertools
import os
import threading
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from gpu.errors import (
    CAPTURE_IMPLICIT,
    CAPTURE_UNSUPPORTED,
    INVALID_DEVICE,
    NOT_INITIALIZED,
    CUDARuntimeError,
    Misuse,
)

if TYPE_CHECKING:
    from gpu.graphs import Capture

Work = Callable[[], None]

GPUS = 2
TOTAL = 8 << 30
"""Bytes of memory of each GPU."""

lock = threading.RLock()
"""Held while work is queued or runs; the stand-in does one thing at a time."""


class Queue:
    """The work of one stream, in order.

    Args:
        gpu: Whose stream it is.
        kind: "legacy", "blocking" or "non-blocking".

    Attributes:
        address: What stands for cudaStream_t; 0 for the legacy default stream.
        issued: How much work was ever queued.
        finished: How much of it is done.
        capture: What work is recorded into, rather than queued.
    """

    def __init__(self, gpu: Gpu, kind: str, address: int) -> None:
        self.gpu, self.kind, self.address = gpu, kind, address
        self.issued = self.finished = 0
        self.capture: Capture | None = None
        self._waiting: deque[tuple[Work, list[tuple[Queue, int]]]] = deque()

    def add(self, work: Work, after: Iterable[tuple[Queue, int]] = ()) -> None:
        """Queue work that begins after what is before it here, and after ``after``."""
        with lock:
            implied = self._implied()
            if self.capture is not None:
                self.capture.add(self, work)
                return
            self._waiting.append((work, [*after, *implied]))
            self.issued += 1

    def _implied(self) -> list[tuple[Queue, int]]:
        """Return what the rules of the legacy default stream make new work here wait for."""
        match self.kind:
            case "legacy":
                others = [q for q in self.gpu.queues.values() if q.kind == "blocking"]
                if any(queue.capture is not None for queue in others):
                    raise CUDARuntimeError(CAPTURE_IMPLICIT)
                return [(q, q.issued) for q in others if q.finished < q.issued]
            case "blocking" if self.capture is None:
                legacy = self.gpu.queues[0]
                return [(legacy, legacy.issued)] if legacy.finished < legacy.issued else []
        return []

    def run(self, number: int | None = None) -> None:
        """Do what was queued, up to a number of ``issued``, and what that waits for."""
        with lock, np.errstate(all="ignore"):
            number = self.issued if number is None else number
            while self.finished < number:
                work, after = self._waiting.popleft()
                self.finished += 1
                for queue, reached in after:
                    queue.run(reached)
                work()

    def synchronize(self) -> None:
        """As cudaStreamSynchronize."""
        if self.capture is not None:
            self.capture.spoil()
            raise CUDARuntimeError(CAPTURE_UNSUPPORTED)
        self._also_before()
        self.run()
        raise_faults()

    def _also_before(self) -> None:
        """Waiting for the legacy stream waits for what it would wait for."""
        if self.kind == "legacy":
            for queue, reached in self._implied():
                queue.run(reached)


class Gpu:
    """One GPU.

    Attributes:
        total: Bytes of memory; tests make it smaller.
        allocated: Bytes of memory taken from the driver, be they in use or idle in a pool.
        queues: By address.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.total, self.allocated = TOTAL, 0
        self.queues: dict[int, Queue] = {0: Queue(self, "legacy", 0)}
        self._starts: list[int] = []
        self._ends: dict[int, int] = {}

    @property
    def capturing(self) -> bool:
        return any(queue.capture is not None for queue in self.queues.values())

    def synchronize(self) -> None:
        """As cudaDeviceSynchronize."""
        with lock:
            for queue in list(self.queues.values()):
                if queue.capture is not None:
                    queue.capture.spoil()
                    raise CUDARuntimeError(CAPTURE_UNSUPPORTED)
            for queue in list(self.queues.values()):
                queue.run()
            raise_faults()

    # -- which addresses are its memory --------------------------------------------------------

    def note_memory(self, start: int, size: int) -> None:
        with lock:
            insort(self._starts, start)
            self._ends[start] = start + size
            self.allocated += size

    def forget_memory(self, start: int) -> None:
        with lock:
            self._starts.remove(start)
            self.allocated -= self._ends.pop(start) - start

    def owns(self, address: int, size: int) -> bool:
        """Whether these bytes are within one block of its memory."""
        with lock:
            at = bisect_right(self._starts, address) - 1
            return at >= 0 and address + size <= self._ends[self._starts[at]]


gpus = [Gpu(number) for number in range(GPUS)]
_addresses = itertools.count(0x5000_0000, 0x100)
_faults: list[BaseException] = []


_begun: list[int] = []


def begin() -> None:
    """Note that this process uses CUDA, which processes that it starts by a fork then cannot."""
    if not _begun:
        _begun.append(os.getpid())
    if _begun[0] != os.getpid():
        raise CUDARuntimeError(NOT_INITIALIZED)


def new_queue(gpu: Gpu, kind: str) -> Queue:
    with lock:
        address = next(_addresses)
        queue = gpu.queues[address] = Queue(gpu, kind, address)
    return queue


def queue_at(address: int) -> Queue:
    """Return the queue of a stream's address, of the current device if it is 0."""
    if address in (0, 1):
        return current().queues[0]
    for gpu in gpus:
        if address in gpu.queues:
            return gpu.queues[address]
    message = f"{address:#x} is no stream"
    raise Misuse(message)


def fault(error: BaseException) -> None:
    """Note an error that cannot be raised where it is found, for whoever waits next."""
    _faults.append(error)


def raise_faults() -> None:
    if _faults:
        error = _faults[0]
        _faults.clear()
        raise error


class _Current(threading.local):
    number = 0


_current = _Current()


def current() -> Gpu:
    """Return the GPU that is current in this thread."""
    return gpus[_current.number]


def make_current(device: int) -> None:
    begin()
    if not 0 <= device < len(gpus):
        raise CUDARuntimeError(INVALID_DEVICE)
    _current.number = device


def owner_of(address: int, size: int = 1) -> Gpu | None:
    """Return the GPU whose memory these bytes are."""
    return next((gpu for gpu in gpus if gpu.owns(address, size)), None)
