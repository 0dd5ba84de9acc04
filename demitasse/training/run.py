"""The parts of a training run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from demitasse.io.proto import SolverParameter
from demitasse.net import Net
from demitasse.training.distributed import WorkerGroup
from demitasse.training.nonfinite import Nonfinite
from demitasse.training.report import TrainReport
from demitasse.training.updater import Updater
from demitasse.training.watch import Watch

__all__ = ["Run"]


@dataclass(frozen=True, eq=False)
class Run:
    """What a solver is made of once, and what its helpers work on.

    Attributes:
        param: The solver's fields.
        net: The net that is trained.
        test_nets: The nets to test with; they hold the weights of ``net``.
        updater: The update rule and the history.
        report: The losses of the last iterations.
        watch: The best results of tests.
        nonfinite: What is done about losses and weights that are NaN or infinite.
        team: Those who train it.
        rank: Which of ``world_size`` data-parallel workers this is, or the first of its shards.
        world_size: How many of them there are.
    """

    param: SolverParameter
    net: Net
    test_nets: Sequence[Net]
    updater: Updater
    report: TrainReport
    watch: Watch
    nonfinite: Nonfinite
    team: WorkerGroup
    rank: int = 0
    world_size: int = 1

    @property
    def training_nets(self) -> Sequence[Net]:
        """The nets that this process trains: one for each of its shards."""
        return (self.net, *self.team.other_nets)

    @property
    def is_root(self) -> bool:
        """Whether this is the worker that tests and writes snapshots."""
        return self.rank == 0
