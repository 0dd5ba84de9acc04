"""Training that continues when processes die.

Weights and history are the same in all processes, so the remaining processes lose only the current
iteration. They make new solvers, which share out the shards of the run among fewer processes, and
continue from the most advanced state: the bits are those of a run without a failure.
"""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from demitasse.core.deprecated import deprecated_attribute, deprecated_names
from demitasse.core.log import get_logger
from demitasse.errors import ConfigError, ErrorCode, LostProcessError

if TYPE_CHECKING:
    from demitasse.training.checkpoint.checkpointer import TrainingState
    from demitasse.training.context import Request
    from demitasse.training.distributed.mpi import Mpi
    from demitasse.training.solver import Solver

Result = TypeVar("Result")

log = get_logger(__name__)

NOT_STARTED = -1  # iteration of a process that has not made a solver yet


class FaultTolerantRun:
    """A run that restarts its training from the last iteration whenever a process dies.

    For example::

        communicator = Mpi(fault_tolerant=True)
        run = FaultTolerantRun(communicator)


        def train() -> None:
            with dm.Solver("solver.prototxt", num_shards=8, communicator=communicator) as solver:
                with run.attach(solver):
                    solver.solve()


        run.run(train)

    Args:
        communicator: All processes at the start of the run.

    Attributes:
        initial_size: Number of processes at the start of the run.
        state: State to continue from; None at the start of the run.
    """

    def __init__(self, communicator: Mpi) -> None:
        self._communicator = communicator
        self.initial_size = communicator.size
        self.state: TrainingState | None = None
        self._requests: list[Request] = []
        self._finished = False

    def run(self, train: Callable[[], Result]) -> Result:
        """Train, and train again from the last iteration whenever a process has died.

        ``train`` makes a solver and trains with it, within ``attach``; its last result is returned.

        Raises:
            ParallelError: A process hangs, or the run cannot continue.
        """
        while True:
            try:
                return train()
            except LostProcessError as error:
                log.debug("%s", error)
            gc.collect()  # nets are large, and in reference cycles
            self._regroup()

    @contextmanager
    def attach(self, solver: Solver) -> Iterator[None]:
        """Surround training with a solver: restore the state of the run, and save it on failure.

        Raises:
            ConfigError: Gradients do not travel through the communicator.
            LostProcessError: A process died; ``run`` handles this.
        """
        if solver.net.device.backend.connector is not None:
            message = (
                f"{solver.net.device} exchanges gradients with other GPUs directly, and cannot "
                "continue without one; train without fault tolerance, or on device cpu"
            )
            raise ConfigError(message, code=ErrorCode.UNSUPPORTED, field="device")
        if self.state is not None:
            solver.load_state_dict(self.state)
        for action in self._requests:
            solver.request(action)
        self._finished = False
        try:
            yield
            self._finished = True
            self._communicator.allgather_bytes(b"")  # the last files are written before any ends
        except LostProcessError:
            self.state, self._requests = solver.state_dict(), solver.pending_requests
            raise
        with suppress(LostProcessError):
            self._communicator.allgather_bytes(b"")  # and all processes have passed the barrier

    def _regroup(self) -> None:
        """Form a group of the remaining processes, all with the most advanced state."""
        lost = 0
        while True:
            with suppress(LostProcessError):
                lost += self._communicator.shrink()
                self._synchronize()
                break
        if self._communicator.rank == 0:
            at = "the beginning" if self.state is None else f"iteration {self.state.iteration}"
            log.warning(
                "%d of %d processes died; the others continue from %s.",
                lost, lost + self._communicator.size, at,
            )  # fmt: skip

    def _synchronize(self) -> None:
        """Copy state from the most advanced process if this process is behind.

        Among equally advanced processes an unfinished one is preferred: the finished ones may have
        run a last test already.
        """
        mine = NOT_STARTED if self.state is None else self.state.iteration
        note = f"{mine} {0 if self._finished else 1}".encode()
        notes = self._communicator.allgather_bytes(note)
        places = [tuple(map(int, note.split())) for note in notes]
        furthest = max(places)
        source, rank = places.index(furthest), self._communicator.rank
        if set(places) == {furthest}:
            return
        state = np.frombuffer(pickle.dumps(self.state) if rank == source else b"", np.uint8)
        notes = self._communicator.allgather_bytes(str(state.size).encode())
        received = self._communicator.alltoall([state] * len(places), [int(note) for note in notes])
        if places[rank] != furthest:
            self.state = pickle.loads(received[source].tobytes())

    began = deprecated_attribute("FaultTolerantRun", "began", "initial_size")
    going_on = deprecated_attribute("FaultTolerantRun", "going_on", "attach")


__getattr__ = deprecated_names(__name__, {"Survivors": "FaultTolerantRun"})
