"""Processes connected by MPI, through mpi4py. The one file that imports it."""

from __future__ import annotations

import atexit
import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from itertools import pairwise
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from demitasse.core.deprecated import renamed_arguments
from demitasse.errors import ConfigError, ErrorCode, LostProcessError, ParallelError
from demitasse.training.distributed.communicator import Value
from demitasse.training.distributed.limit import limit
from demitasse.training.distributed.watchdog import Watchdog

__all__ = ["Mpi", "launched", "library", "started"]

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

SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
"""Those of them that tell how many there are."""

STEP_SIZES = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
"""Variables by which ``srun`` tells that, whether or not processes can find each other."""

NUMBERS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
"""Variables by which they tell it which, before it has met the others."""

FAULT_TOLERANCE = "OMPI_MCA_mpi_ft_enable"
"""The variable by which Open MPI's launcher tells that processes may go on when one dies."""

ERRORS_ARE_TOLD = "OMPI_MCA_mpi_initial_errhandler", "mpi_errors_return"
"""What lets Open MPI tell of errors while it begins."""

NOTE = 256
"""Bytes of a note."""

LATER = 1.5
"""How much longer than process 0 the others wait: it tells them who is late."""

ENDING = 10.0
"""Seconds that it may take to end all processes."""

START_AGAIN = "start the run again: with --resume auto it goes on from its newest snapshot"
"""What is to be done when processes were ended."""

AT_FIRST = 0.002
"""Seconds that a process looks again and again, whatever it waits for."""

HICCUP = 1.0
"""Seconds that a process which waits for others may not run itself, and still counts."""

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


def started() -> int:
    """Return how many processes a launcher says it has started; 1 where there is none."""
    names = [*SIZES, *STEP_SIZES] if "SLURM_STEP_ID" in os.environ else SIZES
    told = next((os.environ[name] for name in names if name in os.environ), "1")
    return int(told) if told.isdecimal() else 1


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
        timeout: Seconds that one waits for the others in an iteration.
        fault_tolerant: Whether processes go on without one that dies (``shrink``).

    Attributes:
        failures: What the library raises where another process has died.

    Raises:
        ConfigError: mpi4py or a library of MPI is missing; or a launcher started several processes
            that do not know of each other; or they cannot go on without one that dies.
        OSError: There can be no watchdog.
        ParallelError: A process died before all had met.
    """

    @renamed_arguments(deadline="timeout", survive="fault_tolerant")
    def __init__(self, timeout: float = 300.0, *, fault_tolerant: bool = False) -> None:
        if fault_tolerant:
            _need_fault_tolerance()
        self._mpi: Any = None
        self.timeout = timeout
        patience = 2 * LATER * timeout + ENDING  # who is named first is told to all, in vain
        self._watchdog = Watchdog(patience, _own_name(), launched=launched())
        atexit.register(self._leave)  # behind it mpi4py ends MPI, which may wait for the others
        meeting = (
            f"the processes did not meet within {timeout:g} s: one of them has died, is stopped "
            f"or begins slowly, for which there is --timeout; {START_AGAIN}"
        )
        with limit(timeout, meeting, self._end, self._watchdog):
            mpi = _begin(finalize=not fault_tolerant)
            self._mpi = mpi
            self.failures: tuple[type[Exception], ...] = (mpi.Exception,) if fault_tolerant else ()
            try:
                self._comm: Any = mpi.COMM_WORLD.Dup()
                self.local_rank: int = self._comm.Split_type(mpi.COMM_TYPE_SHARED).Get_rank()
            except mpi.Exception as error:
                message = f"a process died before all had met ({error}); {START_AGAIN}"
                raise ParallelError(message, code=ErrorCode.LOST_PROCESS) from error
        self._unfinished: list[Any] = []
        self.rank: int = self._comm.Get_rank()
        self.size: int = self._comm.Get_size()
        self.name = _name(mpi)
        self.in_threads = bool(mpi.Query_thread() >= mpi.THREAD_SERIALIZED)
        if self.size == 1 < started():
            message = (
                f"a launcher started {started()} processes that {self.name} does not connect, so "
                f"each would train by itself; start them with the mpirun of that library, or with "
                f"srun --mpi=pmix"
            )
            raise ConfigError(message, code=ErrorCode.UNAVAILABLE, processes=started())

    def lost(self) -> LostProcessError:
        """Let all other processes notice, too, that one has died; return the error."""
        self._comm.Revoke()
        return LostProcessError("another process has died", code=ErrorCode.LOST_PROCESS)

    def shrink(self) -> int:
        """Go on without the processes that have died; return how many have.

        All that are left call this. They are numbered anew, in the order they had, so that another
        may be the first.

        Raises:
            LostProcessError: One more has died.
        """
        before = self.size
        meeting = (
            f"the processes that are left did not meet within {self.timeout:g} s: one of them is "
            f"stopped or hangs; {START_AGAIN}"
        )
        try:
            with limit(self.timeout, meeting, self._end, self._watchdog):
                self.lost()
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

    def _leave(self) -> None:
        """Let the end of this process be in time, whatever it waits for."""
        if not self._watchdog.expecting:
            ending = (
                f"it did not end within {self.timeout:g} s: another process does not end, or this "
                f"one cannot close a file; where the last snapshot is missing, {START_AGAIN}"
            )
            self._watchdog.expect(self.timeout, ending)

    @_noticing
    def agree(self, note: bytes, patience: float = 1.0) -> list[bytes]:
        own = np.frombuffer(note[:NOTE].ljust(NOTE, b"\0"), np.uint8).copy()
        table = np.zeros((self.size + 1, NOTE), np.uint8)  # and what has gone wrong
        if self.rank == 0:
            table[1] = own
            coming = [self._comm.Irecv(table[1 + r], r, COME) for r in range(1, self.size)]
            late = self._wait(coming, self.timeout * patience)
            if late:
                text = _late((1 + i for i in late), self.timeout).message.encode()[:NOTE]
                table[0, : len(text)] = np.frombuffer(text, np.uint8)
            sent = [self._comm.Isend(table, r, TABLE) for r in range(1, self.size)]
            self._wait([one for i, one in enumerate(sent) if i not in late], self.timeout)
        else:
            sent = [self._comm.Isend(own, 0, COME)]
            got = [self._comm.Irecv(table, 0, TABLE)]
            if self._wait([*sent, *got], self.timeout * patience * LATER):
                raise _late([0], self.timeout)
        wrong = table[0].tobytes().rstrip(b"\0")
        if wrong:
            raise ParallelError(wrong.decode(errors="replace"), code=ErrorCode.TIMEOUT)
        return [row.tobytes().rstrip(b"\0") for row in table[1:]]

    @_noticing
    def share(self, value: Value, patience: float = 1.0) -> Value:
        if self.rank == 0:
            sent = [self._comm.isend(value, r, SHARED) for r in range(1, self.size)]
            self._need(sent, patience)
            return value
        seconds = self.timeout * patience * LATER
        now = time.monotonic()
        end, pause = now + seconds, 0.0
        with self._watched(seconds):
            while not self._comm.iprobe(0, SHARED):
                now, before = time.monotonic(), now
                end += _suspended(before, now)
                if now > end:
                    raise _late([0], self.timeout)
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
            self._watchdog.expect(ENDING, "mpirun did not end the processes; end it yourself")
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
        late = self._wait(requests, self.timeout, nbytes)
        if late:
            raise _late([others[i % len(others)] for i in late], self.timeout)

    def _need(self, requests: Sequence[Any], patience: float = 1.0, nbytes: int = 0) -> None:
        if self._wait(requests, self.timeout * patience, nbytes):
            message = (
                f"another process was lost or hangs: nothing came for {self.timeout:g} s; "
                f"{START_AGAIN}"
            )
            raise ParallelError(message, code=ErrorCode.TIMEOUT)

    def _wait(self, requests: Sequence[Any], seconds: float, nbytes: int = 0) -> list[int]:
        """Wait for requests; return the numbers of those that did not end in time.

        A process that waits leaves its core to others, after a moment; not for as long as so many
        bytes may take, since the library moves them only while it is called.
        """
        now = time.monotonic()
        end, busy, pause = now + seconds, now + AT_FIRST + nbytes / SLOW, 0.0
        waiting = dict(enumerate(requests))
        with self._watched(seconds):
            while waiting:
                try:
                    waiting = {i: one for i, one in waiting.items() if not one.Test()}
                except self.failures:
                    self._unfinished.extend(requests)  # whose arrays others may be reading still
                    raise
                now, before = time.monotonic(), now
                end += _suspended(before, now)
                if not waiting or now > end:
                    break
                time.sleep(pause)
                if now > busy:
                    pause = min(0.002, pause + 2e-6)
        return list(waiting)

    def _watched(self, seconds: float) -> AbstractContextManager[None]:
        """Let a call that does not come back be noticed, where it may last so many seconds."""
        message = f"MPI kept it for {seconds:g} s, which no error ended; {START_AGAIN}"
        return self._watchdog.within(seconds + ENDING, message)


def _suspended(before: float, now: float) -> float:
    """Return for how long this process did not run between two looks: others may not have, either.

    So a job that a scheduler suspends, or a machine that sleeps, goes on.
    """
    return now - before if now - before > HICCUP else 0.0


def _begin(*, finalize: bool) -> Any:
    """Let MPI begin in this process, once it has in all; return it.

    Args:
        finalize: Whether it is to end in order, which may wait for the dead for ever.

    Raises:
        ConfigError: mpi4py or a library of MPI is missing.
        ParallelError: A process has died meanwhile, or processes cannot reach each other.
    """
    # Otherwise MPI ends the run by itself, and mpirun may then end as if all were well.
    os.environ.setdefault(*ERRORS_ARE_TOLD)
    try:
        import mpi4py

        mpi4py.rc.initialize, mpi4py.rc.finalize = False, finalize
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        message = f"training by several processes needs MPI: pip install 'demitasse[mpi]' ({error})"
        raise ConfigError(message, code=ErrorCode.UNAVAILABLE, extra="mpi") from error
    try:
        if not MPI.Is_initialized():
            MPI.Init_thread()
    except RuntimeError as error:
        message = (
            f"MPI did not begin ({error}): another process has died, or the processes cannot reach "
            f"each other, of which MPI itself says more; {START_AGAIN}"
        )
        raise ParallelError(message, code=ErrorCode.LOST_PROCESS) from error
    return MPI


def _own_name() -> str:
    """Return how this process is called before it has met the others."""
    number = next((os.environ[name] for name in NUMBERS if name in os.environ), "0")
    return f"process {number} ({os.getpid()} on {socket.gethostname()})"


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
        raise ConfigError(message, code=ErrorCode.UNAVAILABLE)


def _late(ranks: Iterable[int], timeout: float) -> ParallelError:
    late = sorted(set(ranks))
    who = ", ".join(map(str, late))
    message = (
        f"process {who} did not come in time, {timeout:g} s: it was lost, hangs or is slow, for "
        f"which there is --timeout; {START_AGAIN}"
    )
    return ParallelError(message, code=ErrorCode.TIMEOUT, late=late)
