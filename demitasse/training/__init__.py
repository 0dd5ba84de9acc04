"""Solvers: from gradients to trained nets, with Caffe's formulas, schedules and files."""

from __future__ import annotations

from demitasse.training.epoch import Epoch
from demitasse.training.evaluate import mean_outputs
from demitasse.training.nets import load_weights_list
from demitasse.training.policies import learning_rate
from demitasse.training.solver import Solver
from demitasse.training.state_file import State, read_state
from demitasse.training.updates import RULES
from demitasse.training.watch import EarlyStopping

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
