"""Training that goes on without processes that die.

Weights and history are the same in all processes, so that those that are left have all that the
run needs but the iteration under way. They make solvers anew, which share out the shards of the run
among fewer, and go on from there: the bits are those of a run in which nobody died.
"""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol, TypeVar

import numpy as np

from demitasse.core.log import get_logger
from demitasse.errors import ConfigError, ErrorCode, LostProcessError
from demitasse.training.carried import Carried
from demitasse.training.distributed import Communicator
from demitasse.training.requests import Request
from demitasse.training.solver import Solver

__all__ = ["Survivable", "Survivors"]

Result = TypeVar("Result")

log = get_logger(__name__)

NOWHERE = -1
"""The iteration of a process that has not come to make a solver."""


class Survivable(Communicator, Protocol):
    """Processes of which some may die."""

    def shrink(self) -> int:
        """Go on without those that have died; return how many have.

        All that are left call this; their numbers may be others then.

        Raises:
            LostProcessError: One more has died.
        """


class Survivors:
    """The processes that are left of a run, as one of them sees them.

    For example::

        processes = Mpi(fault_tolerant=True)
        survivors = Survivors(processes)


        def train() -> None:
            with dm.Solver("solver.prototxt", num_shards=8, communicator=processes) as solver:
                with survivors.going_on(solver):
                    solver.solve()


        survivors.run(train)

    Args:
        processes: All that the run begins with.

    Attributes:
        began: How many the run began with.
        carried: Where the run is to go on from; None at its beginning.
    """

    def __init__(self, processes: Survivable) -> None:
        self._processes = processes
        self.began = processes.size
        self.carried: Carried | None = None
        self._asked: list[Request] = []
        self._ended = False

    def run(self, train: Callable[[], Result]) -> Result:
        """Train, and do so again from where the run has come to whenever a process has died.

        Args:
            train: Makes a solver and trains with it, within ``going_on``.

        Returns:
            What it returns at last.

        Raises:
            ParallelError: A process hangs, or the run cannot go on.
        """
        while True:
            try:
                return train()
            except LostProcessError as error:
                log.debug("%s", error)
            gc.collect()  # nets are large, and hold each other
            self._gather()

    @contextmanager
    def going_on(self, solver: Solver) -> Iterator[None]:
        """Surround training with a solver: it begins where the run has come to.

        Raises:
            ConfigError: Gradients do not travel by the processes' own connection.
            LostProcessError: A process has died; ``run`` waits for that.
        """
        if solver.net.device.backend.connector is not None:
            message = (
                f"{solver.net.device} exchanges gradients with other GPUs, and cannot go on "
                "without one; train without survive, or on device cpu"
            )
            raise ConfigError(message, code=ErrorCode.UNSUPPORTED, field="device")
        if self.carried is not None:
            solver.take_up(self.carried)
        for action in self._asked:
            solver.request(action)
        self._ended = False
        try:
            yield
            self._ended = True
            self._processes.agree(b"")  # nobody ends before the last files are written
        except LostProcessError:
            self.carried, self._asked = solver.carry(), solver.asked
            raise
        with suppress(LostProcessError):
            self._processes.agree(b"")  # nor before all know that

    def _gather(self) -> None:
        """Come together with the others that are left, all with the newest state."""
        lost, together = 0, False
        while not together:
            try:
                lost += self._processes.shrink()
                self._level()
                together = True
            except LostProcessError:
                continue
        if self._processes.rank == 0:
            at = "the beginning" if self.carried is None else f"iteration {self.carried.iteration}"
            log.warning(
                "%d of %d processes died; the run goes on from %s with those that are left.",
                lost, lost + self._processes.size, at,
            )  # fmt: skip

    def _level(self) -> None:
        """Take what the process has that has come furthest, where this one has not.

        Of those that have come equally far one that has not ended is taken: others may have run a
        last test already.
        """
        mine = NOWHERE if self.carried is None else self.carried.iteration
        notes = self._processes.agree(f"{mine} {0 if self._ended else 1}".encode())
        places = [tuple(map(int, note.split())) for note in notes]
        furthest = max(places)
        giver, rank = places.index(furthest), self._processes.rank
        nothing = np.empty(0, np.uint8)
        gift = nothing
        if rank == giver and any(place != furthest for place in places):
            gift = np.frombuffer(pickle.dumps(self.carried), np.uint8)
        size = int(self._processes.agree(str(gift.size).encode())[giver])
        behind = places[rank] != furthest
        parts = [nothing if place == furthest else gift for place in places]
        sizes = [size if r == giver and behind else 0 for r in range(len(places))]
        received = self._processes.exchange(parts, sizes)
        if behind:
            self.carried = pickle.loads(received[giver].tobytes())
