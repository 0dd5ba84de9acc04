"""Processes that MPI connects, through mpi4py, which no other module imports."""

from __future__ import annotations

import atexit
import faulthandler
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from itertools import pairwise
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from demitasse.core.deprecated import renamed_arguments
from demitasse.core.extras import missing_extra
from demitasse.errors import ConfigError, ErrorCode, LostProcessError, ParallelError
from demitasse.training.distributed.group import Value
from demitasse.training.distributed.watchdog import TICK, Watchdog

Params = ParamSpec("Params")
Result = TypeVar("Result")

LAUNCHERS = (
    "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_SIZE",
)  # fmt: skip
"""Variables that launchers of MPI set in each of several processes."""

SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
"""Variables whose value is the number of processes."""

STEP_SIZES = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
"""The same of ``srun``, whether or not processes can find each other."""

RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
"""Variables whose value is the rank, before MPI has started."""

FAULT_TOLERANCE = "OMPI_MCA_mpi_ft_enable"
"""Variable that Open MPI's launcher sets if processes may continue when one dies."""

ERRORS_RETURN = "OMPI_MCA_mpi_initial_errhandler", "mpi_errors_return"
"""Variable, and its value, that make Open MPI report errors while it starts."""

NOTE = 256  # bytes of a note
LATER = 1.5  # factor by which other processes wait longer than process 0, which reports who is late
ENDING = 10.0  # seconds that ending all processes may take
EXIT_DELAY = 3.0  # seconds from a timeout until this process exits without help of MPI

RESTART = "start the run again: with --resume auto it continues from its newest snapshot"
"""Advice after processes were ended."""

SPIN = 0.002  # seconds that a process polls without sleeping
HICCUP = 1.0  # seconds between two polls after which a process counts as suspended
SLOW = 200e6  # bytes per second that messages between processes of one machine have at least
NOTES, TABLE, OBJECT, PARTS, SUMS = 1, 2, 3, 4, 5  # tags of messages


def library() -> str:
    """Return name and version of the MPI library; empty if there is none."""
    try:
        import mpi4py

        mpi4py.rc.initialize = False  # only look: join no group
        from mpi4py import MPI
    except (ImportError, RuntimeError):
        return ""
    return _name(MPI)


def _name(mpi: Any) -> str:
    return str(mpi.Get_library_version()).split("\n", 1)[0].split(",", 1)[0].strip("\0 ")


def launched_by_mpi() -> bool:
    """Return whether a launcher of MPI started this process."""
    return any(name in os.environ for name in LAUNCHERS)


def launched_processes() -> int:
    """Return the number of processes that a launcher started; 1 without a launcher."""
    names = [*SIZES, *STEP_SIZES] if "SLURM_STEP_ID" in os.environ else SIZES
    number = next((os.environ[name] for name in names if name in os.environ), "1")
    return int(number) if number.isdecimal() else 1


def _raises_lost_process(
    method: Callable[Concatenate[Mpi, Params], Result],
) -> Callable[Concatenate[Mpi, Params], Result]:
    """Make a method raise LostProcessError, in all processes, after one has died."""

    @wraps(method)
    def call(self: Mpi, /, *args: Params.args, **kwargs: Params.kwargs) -> Result:
        try:
            return method(self, *args, **kwargs)
        except self.failures as error:
            raise self.revoke() from error

    return call


class Mpi:
    """Communicator of all processes that one ``mpirun`` started.

    Args:
        timeout: Seconds that a process waits for the others in an iteration.
        fault_tolerant: Whether processes can continue without one that dies (``shrink``).

    Attributes:
        failures: Exceptions of the library after another process has died.

    Raises:
        ConfigError: mpi4py or an MPI library is missing; a launcher started several processes that
            are not connected; or MPI has no fault tolerance.
        OSError: No watchdog process can be started.
        ParallelError: A process died before all had met.
    """

    @renamed_arguments(deadline="timeout", survive="fault_tolerant")
    def __init__(self, timeout: float = 300.0, *, fault_tolerant: bool = False) -> None:
        tolerant = os.environ.get(FAULT_TOLERANCE, "0").lower() in {"1", "true"}
        if fault_tolerant and not tolerant:  # MPI ends all processes when one dies
            message = (
                "fault tolerance needs Open MPI 5 with ULFM; start the processes with mpirun "
                "--with-ft ulfm"
            )
            raise ConfigError(message, code=ErrorCode.UNAVAILABLE)
        self._mpi: Any = None
        self.timeout = timeout
        stop_limit = 2 * LATER * timeout + ENDING  # the others report a late process first
        number = next((os.environ[name] for name in RANKS if name in os.environ), "0")
        name = f"process {number} ({os.getpid()} on {socket.gethostname()})"
        self._watchdog = Watchdog(stop_limit, name, launched=launched_by_mpi())
        atexit.register(self._limit_exit)  # afterwards mpi4py ends MPI, which may block
        meeting = (
            f"the processes did not meet within {timeout:g} s: a process died, is stopped, or is "
            f"slow (raise --timeout); {RESTART}"
        )
        with self._limited(meeting):
            mpi = _initialize(finalize=not fault_tolerant)
            self._mpi = mpi
            self.failures: tuple[type[Exception], ...] = (mpi.Exception,) if fault_tolerant else ()
            try:
                self._comm: Any = mpi.COMM_WORLD.Dup()
                self.local_rank: int = self._comm.Split_type(mpi.COMM_TYPE_SHARED).Get_rank()
            except mpi.Exception as error:
                message = f"a process died before all had met ({error}); {RESTART}"
                raise ParallelError(message, code=ErrorCode.LOST_PROCESS) from error
        self._unfinished: list[Any] = []
        self.rank: int = self._comm.Get_rank()
        self.size: int = self._comm.Get_size()
        self.name = _name(mpi)
        self.in_threads = bool(mpi.Query_thread() >= mpi.THREAD_SERIALIZED)
        if self.size == 1 < launched_processes():
            message = (
                f"a launcher started {launched_processes()} processes, and {self.name} does not "
                "connect them; start them with the mpirun of that library, or srun --mpi=pmix"
            )
            raise ConfigError(message, code=ErrorCode.UNAVAILABLE, processes=launched_processes())

    def revoke(self) -> LostProcessError:
        """Make the calls of all other processes fail, too; return the error to raise."""
        self._comm.Revoke()
        return LostProcessError("another process has died", code=ErrorCode.LOST_PROCESS)

    def shrink(self) -> int:
        """Remove the processes that died; return their number.

        All remaining processes call this. They get new ranks, in their old order.

        Raises:
            LostProcessError: Another process died meanwhile.
        """
        before = self.size
        meeting = (
            f"the remaining processes did not meet within {self.timeout:g} s: a process is stopped "
            f"or hangs; {RESTART}"
        )
        try:
            with self._limited(meeting):
                self.revoke()
                shrunk = self._comm.Shrink()
        except self.failures as error:
            raise self.revoke() from error
        self._unfinished.append(self._comm)
        self._comm = shrunk
        self.rank, self.size = shrunk.Get_rank(), shrunk.Get_size()
        return before - self.size

    @contextmanager
    def _limited(self, message: str) -> Iterator[None]:
        """End all processes if a block in MPI, which cannot be interrupted, exceeds ``timeout``.

        The watchdog prints the message, and a thread ends all processes. If MPI blocks the
        interpreter's threads, as it does while it starts, this process exits with code 1 and prints
        its traceback. If even that fails, because a signal stopped the process, the watchdog kills
        it.
        """
        # the thread ends the processes after the watchdog has printed the message
        timer = threading.Timer(self.timeout + 2 * TICK, self._end)
        timer.daemon = True
        timer.start()
        faulthandler.dump_traceback_later(self.timeout + EXIT_DELAY, exit=True)
        try:
            with self._watchdog.timeout(self.timeout, message):
                yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            timer.cancel()

    def _end(self) -> None:
        """End all processes, from any thread."""
        if self._mpi is not None:
            self._mpi.COMM_WORLD.Abort(1)

    def _limit_exit(self) -> None:
        """Limit the time that the exit of this process may take."""
        if not self._watchdog.armed:
            message = (
                f"the process did not end within {self.timeout:g} s: another process does not end, "
                f"or a file cannot be closed; if the last snapshot is missing, {RESTART}"
            )
            self._watchdog.arm(self.timeout, message)

    @_raises_lost_process
    def allgather_bytes(self, note: bytes) -> list[bytes]:
        own = np.frombuffer(note[:NOTE].ljust(NOTE, b"\0"), np.uint8).copy()
        table = np.zeros((self.size + 1, NOTE), np.uint8)  # row 0 is an error message
        if self.rank == 0:
            table[1] = own
            coming = [self._comm.Irecv(table[1 + r], r, NOTES) for r in range(1, self.size)]
            late = self._wait(coming, self.timeout)
            if late:
                text = _late((1 + i for i in late), self.timeout).message.encode()[:NOTE]
                table[0, : len(text)] = np.frombuffer(text, np.uint8)
            sent = [self._comm.Isend(table, r, TABLE) for r in range(1, self.size)]
            self._wait([one for i, one in enumerate(sent) if i not in late], self.timeout)
        else:
            sent = [self._comm.Isend(own, 0, NOTES)]
            got = [self._comm.Irecv(table, 0, TABLE)]
            if self._wait([*sent, *got], self.timeout * LATER):
                raise _late([0], self.timeout)
        wrong = table[0].tobytes().rstrip(b"\0")
        if wrong:
            raise ParallelError(wrong.decode(errors="replace"), code=ErrorCode.TIMEOUT)
        return [row.tobytes().rstrip(b"\0") for row in table[1:]]

    @_raises_lost_process
    def broadcast_object(self, value: Value, timeout_factor: float = 1.0) -> Value:
        if self.rank == 0:
            sent = [self._comm.isend(value, r, OBJECT) for r in range(1, self.size)]
            self._complete(sent, timeout_factor)
            return value
        seconds = self.timeout * timeout_factor * LATER
        now = time.monotonic()
        end, pause = now + seconds, 0.0
        with self._watched(seconds):
            while not self._comm.iprobe(0, OBJECT):
                now, before = time.monotonic(), now
                end += _suspended(before, now)
                if now > end:
                    raise _late([0], self.timeout)
                time.sleep(pause)
                pause = min(0.01, pause + 1e-5)
            received: Value = self._comm.recv(source=0, tag=OBJECT)
        return received

    @_raises_lost_process
    def broadcast(self, array: np.ndarray) -> None:
        self._complete([self._comm.Ibcast(array, 0)])

    @_raises_lost_process
    def alltoall(self, parts: Sequence[np.ndarray], sizes: Sequence[int]) -> list[np.ndarray]:
        received = [np.empty(size, parts[0].dtype) for size in sizes]
        self._send_receive(parts, received, PARTS)
        return received

    @_raises_lost_process
    def allgather(self, part: np.ndarray, whole: np.ndarray, bounds: Sequence[int]) -> None:
        places = [whole[a:b] for a, b in pairwise(bounds)]
        self._send_receive([part] * self.size, places, SUMS)

    @_raises_lost_process
    def allreduce(self, array: np.ndarray) -> None:
        request = self._comm.Iallreduce(self._mpi.IN_PLACE, array)
        self._complete([request], nbytes=2 * array.nbytes)

    def abort(self, code: int) -> None:
        if self.size > 1:
            self._watchdog.arm(ENDING, "mpirun did not end the processes; end it yourself")
            self._comm.Abort(code)

    def _send_receive(
        self, sent: Sequence[np.ndarray], received: Sequence[np.ndarray], tag: int
    ) -> None:
        """Send an array to each process and receive one from each; name processes that are late.

        The library's own function would not report which process is late.
        """
        received[self.rank][...] = sent[self.rank]
        others = [r for r in range(self.size) if r != self.rank]
        requests = [self._comm.Irecv(received[r], r, tag) for r in others]
        requests += [self._comm.Isend(sent[r], r, tag) for r in others]
        nbytes = sum(sent[r].nbytes + received[r].nbytes for r in others)
        late = self._wait(requests, self.timeout, nbytes)
        if late:
            raise _late([others[i % len(others)] for i in late], self.timeout)

    def _complete(
        self, requests: Sequence[Any], timeout_factor: float = 1.0, nbytes: int = 0
    ) -> None:
        """Wait for requests; raise ParallelError if they take too long."""
        if self._wait(requests, self.timeout * timeout_factor, nbytes):
            message = (
                f"another process was lost or hangs: nothing arrived for {self.timeout:g} s; "
                f"{RESTART}"
            )
            raise ParallelError(message, code=ErrorCode.TIMEOUT)

    def _wait(self, requests: Sequence[Any], seconds: float, nbytes: int = 0) -> list[int]:
        """Wait for requests; return the indices of those that did not complete in time.

        The process polls without sleeping at first, and for the time that ``nbytes`` may take: the
        library moves bytes only during calls. Then it sleeps between polls.
        """
        now = time.monotonic()
        end, spin, pause = now + seconds, now + SPIN + nbytes / SLOW, 0.0
        waiting = dict(enumerate(requests))
        with self._watched(seconds):
            while waiting:
                try:
                    waiting = {i: one for i, one in waiting.items() if not one.Test()}
                except self.failures:
                    self._unfinished.extend(requests)  # keep arrays that others may still read
                    raise
                now, before = time.monotonic(), now
                end += _suspended(before, now)
                if not waiting or now > end:
                    break
                time.sleep(pause)
                if now > spin:
                    pause = min(0.002, pause + 2e-6)
        return list(waiting)

    def _watched(self, seconds: float) -> AbstractContextManager[None]:
        """Return a block that the watchdog kills if a call into MPI does not return in time."""
        message = f"a call into MPI did not return for {seconds:g} s; {RESTART}"
        return self._watchdog.timeout(seconds + ENDING, message)


def _suspended(before: float, now: float) -> float:
    """Return the seconds between two polls in which this process was suspended.

    The other processes may have been suspended, too: by a scheduler, or because the machine slept.
    """
    return now - before if now - before > HICCUP else 0.0


def _initialize(*, finalize: bool) -> Any:
    """Initialize MPI in this process, once all processes call it; return the module.

    MPI that is finalized at exit may wait for dead processes for ever. Without MPI a ConfigError
    is raised, and a ParallelError if a process died meanwhile, or is not reachable.
    """
    # By default Open MPI aborts, and mpirun may exit with code 0.
    os.environ.setdefault(*ERRORS_RETURN)
    try:
        import mpi4py

        mpi4py.rc.initialize, mpi4py.rc.finalize = False, finalize
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        what = "training by several processes"
        raise missing_extra(ConfigError, what, "MPI", "mpi") from error
    try:
        if not MPI.Is_initialized():
            MPI.Init_thread()
    except RuntimeError as error:
        message = (
            f"MPI failed to start ({error}): another process died, or the processes cannot reach "
            f"each other; see MPI's own messages; {RESTART}"
        )
        raise ParallelError(message, code=ErrorCode.LOST_PROCESS) from error
    return MPI


def _late(ranks: Iterable[int], timeout: float) -> ParallelError:
    late = sorted(set(ranks))
    who = ", ".join(map(str, late))
    message = (
        f"process {who} did not arrive within {timeout:g} s: it was lost, hangs, or is slow (raise "
        f"--timeout); {RESTART}"
    )
    return ParallelError(message, code=ErrorCode.TIMEOUT, late=late)
