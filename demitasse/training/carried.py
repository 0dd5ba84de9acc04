"""A run between two iterations, taken from one solver and given to another of the same run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from demitasse.memory import SyncedMemory
from demitasse.net import Net

__all__ = ["TrainingState", "set_weights", "weights_of"]


@dataclass(frozen=True)
class TrainingState:
    """What a snapshot would hold, in memory.

    Attributes:
        iteration: Updates made.
        step: Steps of the learning-rate policy.
        weights: The memories of all parameters, running averages too, (count,) each.
        history: Arrays in the solver's order, each in its parameter's shape.
        resume: The rest, as an encoded ``ResumeState``.
    """

    iteration: int
    step: int
    weights: Sequence[np.ndarray]
    history: Sequence[np.ndarray]
    resume: bytes


def weights_of(net: Net) -> list[np.ndarray]:
    """Return copies of a net's parameters. Shapes: (count,)."""
    return [memory.cpu_data().copy() for memory in _memories(net)]


def set_weights(net: Net, weights: Sequence[np.ndarray]) -> None:
    """Give a net the parameters that another net of the same layers had."""
    for memory, array in zip(_memories(net), weights, strict=True):
        memory.mutable_cpu_data(discard=True)[...] = array


def _memories(net: Net) -> list[SyncedMemory]:
    return list(dict.fromkeys(blob.data_memory for blob in net.structure.params_list))
