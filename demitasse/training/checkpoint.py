"""What a snapshot is written from."""

from __future__ import annotations

from dataclasses import dataclass

from demitasse.io.proto import ResumeState, SolverParameter
from demitasse.net import Net
from demitasse.training.history import History

__all__ = ["Checkpoint"]


@dataclass(frozen=True)
class Checkpoint:
    """A training run between two iterations.

    Attributes:
        param: The solver's fields.
        net: The net that is trained.
        history: What the solver remembers of each parameter.
        iter: Updates made so far.
        current_step: Steps that the learning-rate policy has taken.
        resume: What an exact continuation needs besides: data positions, passes, losses, ...
    """

    param: SolverParameter
    net: Net
    history: History
    iter: int
    current_step: int
    resume: ResumeState
