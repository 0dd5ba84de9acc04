"""Processes connected by MPI, through mpi4py. The one file that imports it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import wraps
from itertools import pairwise
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from demitasse.errors import ConfigError, LostProcessError, ParallelError
from demitasse.parallel.communicator import Value
from demitasse.parallel.limit import limit

__all__ = ["Mpi", "launched", "library"]

Given = ParamSpec("Given")
Result = TypeVar("Result")

LAUNCHERS = (
    "OMPI_COMM_WORLD_SIZE",
    "PMIX_RANK",
    "PMI_SIZE",
    "MPI_LOCALNRANKS",
    "MV2_COMM_WORLD_SIZE",
)
"""Variables by which launchers of MPI tell a process that it is one of several."""

FAULT_TOLERANCE = "OMPI_MCA_mpi_ft_enable"
"""The variable by which Open MPI's launcher tells that processes may go on when one dies."""

NOTE = 256
"""Bytes of a note."""

LATER = 1.5
"""How much longer than process 0 the others wait: it tells them who is late."""

AT_FIRST = 0.002
"""Seconds that a process looks again and again, whatever it waits for."""

SLOW = 200e6
"""Bytes a second that messages move at, at least, between processes of one machine."""

COME, TABLE, SHARED, PARTS, SUMS = 1, 2, 3, 4, 5
"""Tags of messages."""


def library() -> str:
    """Return which MPI would connect processes; nothing where there is none."""
    try:
        import mpi4py

        mpi4py.rc.initialize = False  # to look at it, and join nobody
        from mpi4py import MPI
    except (ImportError, RuntimeError):
        return ""
    return _name(MPI)


def _name(mpi: Any) -> str:
    return str(mpi.Get_library_version()).split("\n", 1)[0].split(",", 1)[0].strip("\0 ")


def launched() -> bool:
    """Whether this process was started by a launcher of MPI."""
    return any(name in os.environ for name in LAUNCHERS)


def _noticing(
    method: Callable[Concatenate[Mpi, Given], Result],
) -> Callable[Concatenate[Mpi, Given], Result]:
    """Let a method end in LostProcessError, in all processes, where one has died."""

    @wraps(method)
    def noticing(self: Mpi, /, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        try:
            return method(self, *args, **kwargs)
        except self.failures as error:
            raise self.lost() from error

    return noticing


class Mpi:
    """All processes that one ``mpirun`` started.

    Args:
        deadline: Seconds that one waits for the others in an iteration.
        survive: Whether processes go on without one that dies (``shrink``).

    Attributes:
        failures: What the library raises where another process has died.

    Raises:
        ConfigError: mpi4py or a library of MPI is missing; or a launcher started several processes
            that do not know of each other; or they cannot go on without one that dies.
    """

    def __init__(self, deadline: float = 300.0, *, survive: bool = False) -> None:
        if survive:
            _need_fault_tolerance()
        self._mpi: Any = None
        meeting = "the processes did not meet"
        with limit(deadline, meeting, self._end) if survive else nullcontext():
            try:
                import mpi4py

                if survive:
                    mpi4py.rc.finalize = False  # that may wait for the dead for ever
                from mpi4py import MPI
            except (ImportError, RuntimeError) as error:
                message = (
                    "training by several processes needs MPI: pip install 'demitasse[mpi]' "
                    f"({error})"
                )
                raise ConfigError(message) from error
            self._mpi = MPI
            self.failures: tuple[type[Exception], ...] = (MPI.Exception,) if survive else ()
            self._comm: Any = MPI.COMM_WORLD.Dup()
            self.local_rank: int = self._comm.Split_type(MPI.COMM_TYPE_SHARED).Get_rank()
        self._unfinished: list[Any] = []
        self.deadline = deadline
        self.rank: int = self._comm.Get_rank()
        self.size: int = self._comm.Get_size()
        self.name = _name(MPI)
        self.in_threads = bool(MPI.Query_thread() >= MPI.THREAD_SERIALIZED)
        tasks = os.environ.get("SLURM_NTASKS", "1")
        in_step = "SLURM_STEP_ID" in os.environ and not launched()
        if self.size == 1 and in_step and tasks.isdecimal() and int(tasks) > 1:
            message = (
                f"srun started {tasks} processes that MPI does not connect, so each would train "
                "by itself; use mpirun, or srun --mpi=pmix"
            )
            raise ConfigError(message)

    def lost(self) -> LostProcessError:
        """Let all other processes notice, too, that one has died; return the error."""
        self._comm.Revoke()
        return LostProcessError("another process has died")

    def shrink(self) -> int:
        """Go on without the processes that have died; return how many have.

        All that are left call this. They are numbered anew, in the order they had, so that another
        may be the first.

        Raises:
            LostProcessError: One more has died.
        """
        before = self.size
        self.lost()
        try:
            with limit(self.deadline, "the processes left did not meet", self._end):
                shrunk = self._comm.Shrink()
        except self.failures as error:
            raise self.lost() from error
        self._unfinished.append(self._comm)
        self._comm = shrunk
        self.rank, self.size = shrunk.Get_rank(), shrunk.Get_size()
        return before - self.size

    def _end(self) -> None:
        """End all processes, from any thread."""
        if self._mpi is not None:
            self._mpi.COMM_WORLD.Abort(1)

    @_noticing
    def agree(self, note: bytes, patience: float = 1.0) -> list[bytes]:
        own = np.frombuffer(note[:NOTE].ljust(NOTE, b"\0"), np.uint8).copy()
        table = np.zeros((self.size + 1, NOTE), np.uint8)  # and what has gone wrong
        if self.rank == 0:
            table[1] = own
            coming = [self._comm.Irecv(table[1 + r], r, COME) for r in range(1, self.size)]
            late = self._wait(coming, self.deadline * patience)
            if late:
                text = _late(1 + i for i in late).encode()[:NOTE]
                table[0, : len(text)] = np.frombuffer(text, np.uint8)
            sent = [self._comm.Isend(table, r, TABLE) for r in range(1, self.size)]
            self._wait([one for i, one in enumerate(sent) if i not in late], self.deadline)
        else:
            sent = [self._comm.Isend(own, 0, COME)]
            got = [self._comm.Irecv(table, 0, TABLE)]
            if self._wait([*sent, *got], self.deadline * patience * LATER):
                raise ParallelError(_late([0]))
        wrong = table[0].tobytes().rstrip(b"\0")
        if wrong:
            raise ParallelError(wrong.decode(errors="replace"))
        return [row.tobytes().rstrip(b"\0") for row in table[1:]]

    @_noticing
    def share(self, value: Value, patience: float = 1.0) -> Value:
        if self.rank == 0:
            sent = [self._comm.isend(value, r, SHARED) for r in range(1, self.size)]
            self._need(sent, patience)
            return value
        end = time.monotonic() + self.deadline * patience * LATER
        pause = 0.0
        while not self._comm.iprobe(0, SHARED):
            if time.monotonic() > end:
                raise ParallelError(_late([0]))
            time.sleep(pause)
            pause = min(0.01, pause + 1e-5)
        shared: Value = self._comm.recv(source=0, tag=SHARED)
        return shared

    @_noticing
    def broadcast(self, array: np.ndarray) -> None:
        self._need([self._comm.Ibcast(array, 0)])

    @_noticing
    def exchange(self, parts: Sequence[np.ndarray], sizes: Sequence[int]) -> list[np.ndarray]:
        received = [np.empty(size, parts[0].dtype) for size in sizes]
        self._trade(parts, received, PARTS)
        return received

    @_noticing
    def collect(self, part: np.ndarray, whole: np.ndarray, bounds: Sequence[int]) -> None:
        places = [whole[a:b] for a, b in pairwise(bounds)]
        self._trade([part] * self.size, places, SUMS)

    @_noticing
    def add(self, array: np.ndarray) -> None:
        request = self._comm.Iallreduce(self._mpi.IN_PLACE, array)
        self._need([request], nbytes=2 * array.nbytes)

    def abort(self, code: int) -> None:
        if self.size > 1:
            self._comm.Abort(code)

    def _trade(self, given: Sequence[np.ndarray], taken: Sequence[np.ndarray], tag: int) -> None:
        """Give each process an array and take one of each; names who does not take part.

        One message for each pair, where the library's own functions would not tell whose is late.
        """
        taken[self.rank][...] = given[self.rank]
        others = [r for r in range(self.size) if r != self.rank]
        requests = [self._comm.Irecv(taken[r], r, tag) for r in others]
        requests += [self._comm.Isend(given[r], r, tag) for r in others]
        nbytes = sum(given[r].nbytes + taken[r].nbytes for r in others)
        late = self._wait(requests, self.deadline, nbytes)
        if late:
            raise ParallelError(_late([others[i % len(others)] for i in late]))

    def _need(self, requests: Sequence[Any], patience: float = 1.0, nbytes: int = 0) -> None:
        if self._wait(requests, self.deadline * patience, nbytes):
            message = f"another process was lost or hangs: nothing came for {self.deadline:g} s"
            raise ParallelError(message)

    def _wait(self, requests: Sequence[Any], seconds: float, nbytes: int = 0) -> list[int]:
        """Wait for requests; return the numbers of those that did not end in time.

        A process that waits leaves its core to others, after a moment; not for as long as so many
        bytes may take, since the library moves them only while it is called.
        """
        begun = time.monotonic()
        end, busy, pause = begun + seconds, begun + AT_FIRST + nbytes / SLOW, 0.0
        waiting = dict(enumerate(requests))
        while waiting:
            try:
                waiting = {i: one for i, one in waiting.items() if not one.Test()}
            except self.failures:
                self._unfinished.extend(requests)  # whose arrays others may be reading still
                raise
            now = time.monotonic()
            if not waiting or now > end:
                break
            time.sleep(pause)
            if now > busy:
                pause = min(0.002, pause + 2e-6)
        return list(waiting)


def _need_fault_tolerance() -> None:
    """Refuse a library that ends all processes when one dies.

    Raises:
        ConfigError: It does.
    """
    if os.environ.get(FAULT_TOLERANCE, "0").lower() not in {"1", "true"}:
        message = (
            "to go on without a process that dies, the others need Open MPI 5 with its fault "
            "tolerance: start them with mpirun --with-ft ulfm"
        )
        raise ConfigError(message)


def _late(ranks: Iterable[int]) -> str:
    return f"process {', '.join(map(str, sorted(set(ranks))))} did not come in time"
