"""``caffe.get_solver`` and the solver classes over the engine's Solver.

Source: Caffe, ``python/caffe/_caffe.cpp``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from demitasse import solvers
from demitasse.proto import SolverParameter, read_solver_params
from demitasse.pycaffe.net import Net

__all__ = [
    "AdaDeltaSolver",
    "AdaGradSolver",
    "AdamSolver",
    "NesterovSolver",
    "RMSPropSolver",
    "SGDSolver",
    "Solver",
    "get_solver",
]

Path = str | os.PathLike[str]


class Solver:
    """A solver of any type, from its file.

    The type of the file counts for ``get_solver``; a class called by its own name, as
    ``AdamSolver(file)``, is of that type whatever the file says, as in Caffe.

    Raises:
        PrototxtError: The file cannot be read.
        ConfigError: It asks for something that is not there.
    """

    type = ""

    def __init__(self, param_file: Path | SolverParameter) -> None:
        self._solver = solvers.Solver(param_file, type=self.type or None)
        self.net = Net._over(self._solver.net)
        self.test_nets = [Net._over(net) for net in self._solver.test_nets]

    @property
    def iter(self) -> int:
        """Updates made so far."""
        return self._solver.iter

    @property
    def param(self) -> SolverParameter:
        """The solver's message."""
        return self._solver.param

    @property
    def lr(self) -> float:
        """The learning rate of the last update."""
        return self._solver.lr

    def step(self, iterations: int) -> None:
        """Make a number of updates."""
        self._solver.step(iterations)

    def solve(self, resume_file: Path | None = None) -> None:
        """Train to the end, from a snapshot if one is given."""
        self._solver.solve(resume_file)

    def snapshot(self) -> None:
        """Write the weights and the state."""
        self._solver.snapshot()

    def restore(self, state_file: Path) -> None:
        """Continue from a snapshot."""
        self._solver.restore(state_file)

    def apply_update(self) -> None:
        """Make one update from the gradients as they are."""
        self._solver.apply_update()

    def share_weights(self, net: Net) -> None:
        """Hold the same parameters as another net."""
        self.net.share_with(net)

    def add_callback(
        self, on_start: Callable[[], Any], on_gradients_ready: Callable[[], Any]
    ) -> None:
        """Call functions when an iteration starts and when its gradients are there."""
        self._solver.on_start.append(on_start)
        self._solver.on_gradients_ready.append(on_gradients_ready)


class SGDSolver(Solver):
    """Stochastic gradient descent with momentum."""

    type = "SGD"


class NesterovSolver(Solver):
    """Nesterov's accelerated gradient."""

    type = "Nesterov"


class AdaGradSolver(Solver):
    """AdaGrad."""

    type = "AdaGrad"


class RMSPropSolver(Solver):
    """RMSProp."""

    type = "RMSProp"


class AdaDeltaSolver(Solver):
    """AdaDelta."""

    type = "AdaDelta"


class AdamSolver(Solver):
    """Adam."""

    type = "Adam"


CLASSES: dict[str, type[Solver]] = {
    kind.type: kind
    for kind in (
        SGDSolver, NesterovSolver, AdaGradSolver, RMSPropSolver, AdaDeltaSolver, AdamSolver,
    )
}  # fmt: skip


def get_solver(param_file: Path | SolverParameter) -> Solver:
    """Return the solver that a file describes.

    Raises:
        ConfigError: Its type is unknown.
    """
    param = param_file
    if not isinstance(param, SolverParameter):
        param = read_solver_params(param)
    return CLASSES.get(param.type, Solver)(param_file)
