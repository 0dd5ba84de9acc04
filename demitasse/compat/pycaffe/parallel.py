"""Several solvers that train one net, each in a process and with a GPU of its own.

Source: Caffe, ``python/caffe/_caffe.cpp`` and ``src/caffe/parallel.cpp``.
"""

from __future__ import annotations

import math
import uuid
from typing import TYPE_CHECKING, Protocol

from demitasse.errors import ConfigError

if TYPE_CHECKING:
    from demitasse.compat.pycaffe.net import Net
    from demitasse.training.distributed.gradient_buffer import GradientAverager

__all__ = [
    "NCCL",
    "has_nccl",
    "place",
    "set_multiprocess",
    "set_solver_count",
    "set_solver_rank",
    "solver_count",
    "solver_rank",
]

_solvers = {"count": 1, "rank": 0}


def has_nccl() -> bool:
    """Whether there is NCCL, through CuPy, so that several GPUs can train one net.

    No GPU is looked for: a process that has done so could not start others by a fork.
    """
    from demitasse.backends.cupy.library.nccl import missing

    return not missing()


def solver_count() -> int:
    """Return how many solvers train together."""
    return _solvers["count"]


def set_solver_count(count: int) -> None:
    """Say how many solvers train together; each made afterwards reads its share of the data.

    Raises:
        ConfigError: Less than one.
    """
    if count < 1:
        message = f"{count} solvers cannot train; give 1 or more"
        raise ConfigError(message)
    _solvers["count"] = int(count)


def solver_rank() -> int:
    """Return which of the solvers this is."""
    return _solvers["rank"]


def set_solver_rank(rank: int) -> None:
    """Say which of the solvers this is, from 0; only the first tests and writes snapshots.

    Raises:
        ConfigError: It is negative.
    """
    if rank < 0:
        message = f"solvers are numbered from 0; there is none of rank {rank}"
        raise ConfigError(message)
    _solvers["rank"] = int(rank)


def place() -> tuple[int, int]:
    """Return the rank of a solver that is made now, and the number of solvers.

    Raises:
        ConfigError: There are not so many.
    """
    rank, count = solver_rank(), solver_count()
    if rank >= count:
        message = (
            f"rank {rank} is none of {count} solvers, which are numbered from 0; call "
            "set_solver_count, too"
        )
        raise ConfigError(message)
    return rank, count


def set_multiprocess(multiprocess: bool) -> None:
    """Say whether the other solvers are in other processes; each always may be."""
    del multiprocess


class Solver(Protocol):
    """What is needed of a solver."""

    net: Net


class NCCL:
    """Adds up the gradients of several solvers, each with a GPU; of one, there is nothing to add.

    It may be given to ``solver.add_callback``, and to ``solver.net.after_backward`` to begin with
    each layer's gradients while backward goes on. It waits for the others as long as they take.

    Args:
        solver: The solver.
        uid: What ``new_uid`` returned in one process.

    Raises:
        ConfigError: Several solvers are to train, and this one's net is not on a GPU, or there is
            no NCCL.
        ParallelError: NCCL fails.
    """

    def __init__(self, solver: Solver, uid: str | bytes) -> None:
        self.solver = solver
        self._gradients: GradientAverager | None = None
        if solver_count() > 1:
            name = uid.encode("latin-1") if isinstance(uid, str) else bytes(uid)
            self._gradients = _connected(solver.net, name)

    @staticmethod
    def new_uid() -> bytes:
        """Return a name for a group of solvers."""
        from demitasse.backends.cupy.library.nccl import new_uid

        return new_uid() if has_nccl() else uuid.uuid4().hex.encode()

    def bcast(self) -> None:
        """Give the first solver's weights to the others."""
        if self._gradients is not None:
            self._gradients.broadcast_weights()

    def on_start(self) -> None:
        """Do what is due before an iteration's passes."""

    def on_gradients_ready(self) -> None:
        """Replace the gradients by their mean over all solvers."""
        if self._gradients is not None:
            self._gradients.finish()

    def __call__(self, layer: int) -> None:
        """Begin with a layer's gradients, after its backward."""
        if self._gradients is not None:
            self._gradients.start_layer(layer)


def _connected(net: Net, uid: bytes) -> GradientAverager:
    from demitasse.training.distributed.gradient_buffer import GradientAverager

    engine = net._net
    connector = engine.device.backend.connector
    count = solver_count()
    why = f"this net is on {engine.device}" if connector is None else connector.missing()
    if connector is None or why:
        message = (
            f"NCCL connects GPUs, and {why}; without it {count} processes train one net by: "
            f"mpirun -n {count} demitasse train --solver SOLVER"
        )
        raise ConfigError(message)
    return GradientAverager(engine, connector.join(uid, solver_rank(), count, timeout=math.inf))
