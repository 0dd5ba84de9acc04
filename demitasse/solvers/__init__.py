"""Solvers: from gradients to trained nets, with Caffe's formulas, schedules and files."""

from __future__ import annotations

from demitasse.solvers.epoch import Epoch
from demitasse.solvers.evaluate import mean_outputs
from demitasse.solvers.nets import load_weights_list
from demitasse.solvers.policies import learning_rate
from demitasse.solvers.solver import Solver
from demitasse.solvers.state_file import State, read_state
from demitasse.solvers.updates import RULES
from demitasse.solvers.watch import EarlyStopping

__all__ = [
    "RULES",
    "EarlyStopping",
    "Epoch",
    "Solver",
    "State",
    "learning_rate",
    "load_weights_list",
    "mean_outputs",
    "read_state",
]
