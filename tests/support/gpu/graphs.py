"""Capture of a stream's work, and graphs, which do that work again on the same memory."""

from __future__ import annotations

from typing import Any

from gpu import machine
from gpu.errors import CAPTURE_INVALIDATED, CAPTURE_UNJOINED, CAPTURE_UNMATCHED, CUDARuntimeError


class Capture:
    """Work that is recorded, rather than queued.

    Attributes:
        open: Whether more may be recorded.
        spoiled: Whether something was done that a capture forbids.
    """

    def __init__(self, origin: machine.Queue) -> None:
        self.open, self.spoiled = True, False
        self._origin = origin
        self._works: list[machine.Work] = []
        self._unjoined: set[machine.Queue] = set()
        self._members = {origin}

    def add(self, queue: machine.Queue, work: machine.Work) -> None:
        if self.spoiled:
            raise CUDARuntimeError(CAPTURE_INVALIDATED)
        self._works.append(work)
        if queue is not self._origin:
            self._unjoined.add(queue)

    def join(self, waiting: machine.Queue, recorded: machine.Queue) -> None:
        """Let ``waiting`` go on after what ``recorded`` has captured."""
        if waiting.capture not in (None, self):
            self.spoil()
            raise CUDARuntimeError(CAPTURE_UNMATCHED)
        if waiting is self._origin:
            self._unjoined.discard(recorded)
        elif waiting not in self._members:
            self._members.add(waiting)
            self._unjoined.add(waiting)
            waiting.capture = self

    def spoil(self) -> None:
        self.spoiled = True

    def end(self, queue: machine.Queue) -> Graph:
        if queue is not self._origin:
            self.spoil()
            raise CUDARuntimeError(CAPTURE_UNMATCHED)
        self.open = False
        for member in self._members:
            member.capture = None
        if self.spoiled:
            raise CUDARuntimeError(CAPTURE_INVALIDATED)
        if self._unjoined:
            raise CUDARuntimeError(CAPTURE_UNJOINED)
        graph = Graph.__new__(Graph)
        graph.works = self._works
        return graph


class Graph:
    """As ``cupy.cuda.Graph``.

    Attributes:
        works: What it does; the stand-in's own.
        launches: How often it was launched; the stand-in's own.
    """

    works: list[machine.Work]
    launches = 0

    def __init__(self, *args: object, **kwargs: object) -> None:
        message = (
            "currently this class cannot be initiated by the user and must be created via "
            "stream capture"
        )
        raise NotImplementedError(message)

    def launch(self, stream: Any = None) -> None:
        self.launches += 1

        def replay() -> None:
            for work in self.works:
                work()

        _queue(stream).add(replay)

    def upload(self, stream: Any = None) -> None:
        _queue(stream)


def _queue(stream: Any) -> machine.Queue:
    from gpu.streams import get_current_stream

    queue: machine.Queue = (get_current_stream() if stream is None else stream).queue
    return queue
