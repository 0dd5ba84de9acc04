"""NCCL under cupy's names: threads and processes whose GPUs exchange arrays.

What a group's members give lies in files of a folder that only its name tells of, so they may be
threads of one process or processes. As on a GPU, work is queued and runs when somebody waits for
it; it waits for the other members then. What would hang or give nonsense on GPUs is said here:
members that do different things, a GPU that has two of them, memory of another GPU.
"""

from __future__ import annotations

import os
import pickle
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpu import machine
from gpu.errors import Misuse
from gpu.memory import bytes_at

NCCL_SUM = 0
NCCL_FLOAT16, NCCL_FLOAT32, NCCL_FLOAT64 = 6, 7, 8
TYPES = {NCCL_FLOAT16: np.float16, NCCL_FLOAT32: np.float32, NCCL_FLOAT64: np.float64}

PATIENCE = 60.0
"""Seconds until a member that does not come is taken for lost."""

available = True


class NcclError(RuntimeError):
    """As ``cupy.cuda.nccl.NcclError``."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"NCCL_ERROR {status}")


def get_version() -> int:
    return 22707


def get_unique_id() -> bytes:
    """Return the name of a group: that of a folder."""
    return tempfile.mkdtemp(prefix="nccl-").encode().ljust(128, b"\0")


@dataclass(frozen=True)
class Part:
    """What one member does within a piece of work.

    Attributes:
        kind: "sum", "broadcast", "send" or "receive".
        array: What it gives and gets. Shape: (count,).
        peer: The root of a broadcast, or the other of two.
    """

    kind: str
    array: np.ndarray
    peer: int = -1

    @property
    def told(self) -> tuple[str, int, str, int]:
        return self.kind, self.array.size, str(self.array.dtype), self.peer


class _Group(threading.local):
    """What a thread has collected between groupStart and groupEnd."""

    depth = 0
    parts: list[tuple[NcclCommunicator, Part, machine.Queue]]


_group = _Group()
_members: dict[tuple[str, int], NcclCommunicator] = {}


def groupStart() -> None:  # noqa: N802
    if not _group.depth:
        _group.parts = []
    _group.depth += 1


def groupEnd() -> None:  # noqa: N802
    _group.depth -= 1
    if _group.depth or not _group.parts:
        return
    [(member, queue)] = {(member, queue) for member, _, queue in _group.parts}
    member._queue([part for _, part, _ in _group.parts], queue)


class NcclCommunicator:
    """As ``cupy.cuda.nccl.NcclCommunicator``."""

    def __init__(self, ndev: int, commId: bytes, rank: int) -> None:  # noqa: N803
        if not isinstance(commId, bytes) or len(commId) != 128:
            raise TypeError("Argument 'commId' has incorrect type (expected bytes)")
        self._gpu, self._size, self._rank = machine.current(), ndev, rank
        self._folder = Path(commId.rstrip(b"\0").decode())
        self._works: list[tuple[machine.Queue, int]] = []
        self._gone = False
        self._give("comes", os.getpid(), self._gpu.number)
        came = self._all("comes")
        places = [gpu for _, gpu in came]
        if len(set(places)) < ndev:
            raise NcclError(5)  # a GPU that has two members
        _members[str(self._folder), rank] = self

    # -- what cupy has -------------------------------------------------------------------------

    def rank_id(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def device_id(self) -> int:
        return self._gpu.number

    def abort(self) -> None:
        self._gone = True

    def destroy(self) -> None:
        self._gone = True

    def check_async_error(self) -> None:
        machine.raise_faults()

    def allReduce(  # noqa: N802
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int
    ) -> None:
        if sendbuf != recvbuf or op != NCCL_SUM:
            raise NotImplementedError("the stand-in adds up in place")
        self._note(Part("sum", self._array(sendbuf, count, datatype)), stream)

    def bcast(self, buff: int, count: int, datatype: int, root: int, stream: int) -> None:
        self._note(Part("broadcast", self._array(buff, count, datatype), root), stream)

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._note(Part("send", self._array(sendbuf, count, datatype), peer), stream)

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._note(Part("receive", self._array(recvbuf, count, datatype), peer), stream)

    # -- queueing ------------------------------------------------------------------------------

    def _array(self, address: int, count: int, datatype: int) -> np.ndarray:
        dtype = np.dtype(TYPES[datatype])
        if not self._gpu.owns(address, count * dtype.itemsize):
            raise Misuse(f"NCCL is given memory that is not GPU {self._gpu.number}'s")
        return bytes_at(address, count * dtype.itemsize).view(dtype)

    def _note(self, part: Part, stream: int) -> None:
        if machine.current() is not self._gpu:
            raise Misuse("NCCL is called while another GPU is current")
        queue = machine.queue_at(stream)
        if _group.depth:
            _group.parts.append((self, part, queue))
        else:
            self._queue([part], queue)

    def _queue(self, parts: Sequence[Part], queue: machine.Queue) -> None:
        with machine.lock:
            number = len(self._works)
            queue.add(lambda: self._run(number, parts))
            self._works.append((queue, queue.issued))

    # -- working -------------------------------------------------------------------------------

    def _run(self, number: int, parts: Sequence[Part]) -> None:
        gives = [part.array if part.kind != "receive" else None for part in parts]
        self._give(number, [part.told for part in parts], gives)
        try:
            found = self._all(number)
        except Misuse as error:
            machine.fault(error)
            return
        if self._gone:
            return
        told = [one for one, _ in found]
        if parts[0].kind in ("sum", "broadcast") and any(one != told[0] for one in told):
            machine.fault(Misuse(f"members of a group do not do the same: {told}"))
            return
        for index, part in enumerate(parts):
            match part.kind:
                case "sum":
                    total = found[0][1][index]
                    for _, given in found[1:]:
                        total = total + given[index]
                    part.array[...] = total
                case "broadcast":
                    part.array[...] = found[part.peer][1][index]
                case "receive":
                    self._receive(part, found)

    def _receive(self, part: Part, found: Sequence[Any]) -> None:
        what = ("send", part.array.size, str(part.array.dtype), self._rank)
        theirs, given = found[part.peer]
        if what not in theirs:
            machine.fault(Misuse(f"member {part.peer} does {theirs}, and not {what}"))
            return
        part.array[...] = given[theirs.index(what)]

    def _give(self, number: object, *what: object) -> None:
        file = self._folder / f"{number}.{self._rank}"
        file.with_suffix(".part" + file.suffix).write_bytes(pickle.dumps(what))
        file.with_suffix(".part" + file.suffix).rename(file)
        if isinstance(number, int):  # whoever has come here has read what was before
            (self._folder / f"{number - 2}.{self._rank}").unlink(missing_ok=True)

    def _all(self, number: object) -> list[Any]:
        """Return what every member gives, once all have come here."""
        end = time.monotonic() + PATIENCE
        files = [self._folder / f"{number}.{rank}" for rank in range(self._size)]
        while not all(file.exists() for file in files):
            if self._gone:
                return []
            if time.monotonic() > end:
                late = [rank for rank, file in enumerate(files) if not file.exists()]
                raise Misuse(f"members {late} never came to {number}")
            if isinstance(number, int):
                self._run_others(number)
            _rest.wait(0.001)
        return [pickle.loads(file.read_bytes()) for file in files]

    def _run_others(self, number: int) -> None:
        """Let members in this process come to this point: GPUs work all the time."""
        for rank in range(self._size):
            other = _members.get((str(self._folder), rank))
            if other is not None and other is not self and len(other._works) > number:
                queue, reached = other._works[number]
                if queue.finished < reached:
                    queue.run(reached)


class _Rest:
    """Lets other threads have the machine for a moment."""

    def __init__(self) -> None:
        self._condition = threading.Condition(machine.lock)

    def wait(self, seconds: float) -> None:
        with self._condition:
            self._condition.wait(seconds)


_rest = _Rest()
