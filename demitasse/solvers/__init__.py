"""Solvers: from gradients to trained nets, with Caffe's formulas, schedules and files."""

from __future__ import annotations

import os
from typing import Any

from demitasse.proto import SolverParameter
from demitasse.solvers.evaluate import Epoch, mean_outputs
from demitasse.solvers.nets import load_weights_list
from demitasse.solvers.policies import learning_rate
from demitasse.solvers.solver import Solver
from demitasse.solvers.state_file import State, read_state
from demitasse.solvers.watch import EarlyStopping

__all__ = [
    "SOLVERS",
    "AdaDeltaSolver",
    "AdaGradSolver",
    "AdamSolver",
    "AdamWSolver",
    "EarlyStopping",
    "Epoch",
    "NesterovSolver",
    "RMSPropSolver",
    "SGDSolver",
    "Solver",
    "State",
    "get_solver",
    "learning_rate",
    "load_weights_list",
    "mean_outputs",
    "read_state",
]


class SGDSolver(Solver):
    """Stochastic gradient descent with momentum; the learning rate is inside the momentum."""

    kind = "SGD"


class NesterovSolver(Solver):
    """Gradient descent with Nesterov's momentum."""

    kind = "Nesterov"


class AdaGradSolver(Solver):
    """Steps shrink with the sum of squared gradients."""

    kind = "AdaGrad"


class RMSPropSolver(Solver):
    """Steps shrink with a running average of squared gradients."""

    kind = "RMSProp"


class AdaDeltaSolver(Solver):
    """Steps are scaled by running averages of squared gradients and squared steps."""

    kind = "AdaDelta"


class AdamSolver(Solver):
    """Running averages of gradients and of their squares; decay is part of the gradient."""

    kind = "Adam"


class AdamWSolver(Solver):
    """Adam whose weight decay does not go through the averages."""

    kind = "AdamW"


SOLVERS = Solver.kinds
"""Solver classes by the ``type`` in solver files."""


def get_solver(source: str | os.PathLike[str] | SolverParameter, **options: Any) -> Solver:
    """Return the solver that a file or a message describes; see :class:`Solver`."""
    return Solver(source, **options)
