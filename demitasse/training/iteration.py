"""The passes of one iteration, from batches to gradients, and what is done about their loss.

Source: Caffe, ``Solver::Step`` in ``src/caffe/solver.cpp``.
"""

from __future__ import annotations

from demitasse.training.due import display_is_due
from demitasse.training.run import Run

__all__ = ["accumulate_gradients", "loss_waits", "take_loss"]


def accumulate_gradients(run: Run, iteration: int, rate: float) -> None:
    """Run ``iter_size`` batches forward and backward, and look at their loss.

    The first worker shows it when due.

    Args:
        run: The run; the gradients of its net's parameters grow, and its report has the loss.
        iteration: Number of updates made so far.
        rate: The learning rate of the last update, for messages.

    Raises:
        NetError: The loss is NaN or infinite, and this is to end the run.
        DataError: It is, because of a label that is none of the classes.
    """
    display = display_is_due(run.param, iteration)
    run.net.debug_info = display and run.param.debug_info
    loss = run.team.forward_backward(run.net, run.param.iter_size)
    take_loss(run, loss, iteration, rate)
    if display and run.is_root:
        run.report.display(run.net, iteration, run.param.display)
        run.report.waiting(iteration, run.team.wait_times)


def take_loss(run: Run, loss: float, iteration: int, rate: float) -> None:
    """Take note of the loss of an iteration, and look at it.

    Raises:
        NetError: It is NaN or infinite, and this is to end the run.
    """
    run.report.losses.append(loss)
    run.nonfinite.check(loss, run.net, run.team, iteration, rate)


def loss_waits(run: Run, iteration: int) -> bool:
    """Whether nothing needs the loss of an iteration before its update is queued."""
    return (
        run.team.is_single
        and run.net.device.backend.queues
        and run.param.iter_size == 1
        and run.param.lr_policy != "plateau"
        and not display_is_due(run.param, iteration)
    )
