"""Training: solvers, from gradients to trained nets, with Caffe's formulas, schedules and files."""

from demitasse.training.checkpoint import State, read_state
from demitasse.training.evaluation import Epoch, mean_outputs
from demitasse.training.lr_policies import learning_rate
from demitasse.training.monitor import EarlyStopping
from demitasse.training.nets import load_weights_list
from demitasse.training.report import log_histograms
from demitasse.training.solver import Solver
from demitasse.training.update_rules import RULES

__all__ = [
    "RULES", "EarlyStopping", "Epoch", "Solver", "State", "learning_rate", "load_weights_list",
    "log_histograms", "mean_outputs", "read_state",
]  # fmt: skip
