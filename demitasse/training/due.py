"""What a solver has to do at an iteration besides training, by its fields."""

from __future__ import annotations

from demitasse.io.proto import SolverParameter

__all__ = ["display_is_due", "last_test_is_due", "snapshot_is_due", "test_is_due"]


def display_is_due(param: SolverParameter, iteration: int) -> bool:
    """Whether loss and learning rate are shown."""
    return _is_due(param.display, iteration)


def snapshot_is_due(param: SolverParameter, iteration: int) -> bool:
    """Whether a snapshot is written."""
    return _is_due(param.snapshot, iteration)


def test_is_due(param: SolverParameter, iteration: int) -> bool:
    """Whether the nets are tested before this iteration."""
    return _is_due(param.test_interval, iteration) and (iteration > 0 or param.test_initialization)


def last_test_is_due(param: SolverParameter, iteration: int) -> bool:
    """Whether they are tested after the last iteration, of which there may have been none."""
    return _is_due(param.test_interval, iteration)


def _is_due(every: int, iteration: int) -> bool:
    return bool(every) and iteration % every == 0
