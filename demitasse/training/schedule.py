"""The learning rate of each update in turn."""

from __future__ import annotations

from demitasse.core.log import get_logger
from demitasse.training.due import display_is_due
from demitasse.training.policies import Rate, learning_rate
from demitasse.training.run import Run

__all__ = ["scheduled_rate"]

log = get_logger(__name__)


def scheduled_rate(run: Run, iteration: int, step: int) -> Rate:
    """Return the learning rate of an update and the step that its policy takes before it.

    Steps are logged, and the rate when it is due.

    Args:
        run: The run; policy ``plateau`` looks at its losses or the results of its tests.
        iteration: Number of updates made so far.
        step: The step of the update before.

    Raises:
        ConfigError: The policy lacks a field, or has come to its end.
    """
    before = step
    if run.param.lr_policy == "plateau":
        step = run.watch.plateau_step(run.param, iteration, run.report.smoothed_loss, step)
    rate, step = learning_rate(run.param, iteration, step)
    if run.param.lr_policy == "multistep" and step != before:
        log.info("MultiStep Status: Iteration %d, step = %d", iteration, step)
    if display_is_due(run.param, iteration):
        run.report.rate(iteration, rate)
    return rate, step
