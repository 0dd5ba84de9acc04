"""Names about training in several processes, as far as one process goes.

Source: Caffe, ``python/caffe/_caffe.cpp`` and ``src/caffe/parallel.cpp``.
"""

from __future__ import annotations

import uuid

from demitasse.errors import ConfigError

__all__ = [
    "NCCL",
    "has_nccl",
    "set_multiprocess",
    "set_solver_count",
    "set_solver_rank",
    "solver_count",
    "solver_rank",
]


def has_nccl() -> bool:
    """Whether several GPUs can train one net: they cannot."""
    return False


def solver_count() -> int:
    """Return how many solvers train together: 1."""
    return 1


def set_solver_count(count: int) -> None:
    """Say how many solvers train together.

    Raises:
        ConfigError: More than one.
    """
    if count != 1:
        message = f"{count} solvers cannot train one net together; train with one, on one device"
        raise ConfigError(message)


def solver_rank() -> int:
    """Return which of the solvers this is: 0, the first."""
    return 0


def set_solver_rank(rank: int) -> None:
    """Say which of the solvers this is.

    Raises:
        ConfigError: Another than the first.
    """
    if rank != 0:
        message = f"rank {rank} is one of several solvers; train with one, on one device"
        raise ConfigError(message)


def set_multiprocess(multiprocess: bool) -> None:
    """Say whether the other solvers are in other processes; there are none."""
    del multiprocess


class NCCL:
    """What adds up the gradients of several solvers; of one, there is nothing to add.

    Args:
        solver: The solver.
        uid: What ``new_uid`` returned.
    """

    def __init__(self, solver: object, uid: str | bytes) -> None:
        del uid
        self.solver = solver

    @staticmethod
    def new_uid() -> bytes:
        """Return a name for a group of solvers."""
        return uuid.uuid4().hex.encode()

    def bcast(self) -> None:
        """Give the first solver's weights to the others."""

    def on_start(self) -> None:
        """Do what is due before an iteration's passes."""

    def on_gradients_ready(self) -> None:
        """Do what is due before an update."""

    def __call__(self, layer: int) -> None:
        """Do what is due after a layer's backward."""
