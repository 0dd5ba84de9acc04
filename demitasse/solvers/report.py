"""What a solver says while it runs, in lines that Caffe's log parsers read.

Each line about training carries its numbers in the record's ``metrics`` too.

Source: Caffe, ``Solver::Step`` and ``Solver::Test`` in ``src/caffe/solver.cpp``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from time import perf_counter
from typing import Any

import numpy as np

from demitasse.log import get_logger, number
from demitasse.net import Net

__all__ = ["TrainReport", "tell_test"]

log = get_logger(__name__)


class TrainReport:
    """The losses of the last iterations, the clock, and the lines about training.

    Args:
        window: How many iterations the displayed loss is the mean of.
    """

    def __init__(self, window: int) -> None:
        self.losses: deque[float] = deque(maxlen=window)
        self.start(0)

    @property
    def smoothed_loss(self) -> float:
        """Mean of the losses in the window; NaN when there are none."""
        # Not fsum, which raises where losses are infinite or nearly so.
        return sum(self.losses) / len(self.losses) if self.losses else math.nan

    def start(self, iteration: int) -> None:
        """Measure speed from here on."""
        self._since, self._first = perf_counter(), iteration

    def set_losses(self, losses: Iterable[float]) -> None:
        """Put losses, oldest first, in place of those in the window."""
        self.losses.clear()
        self.losses.extend(losses)

    def display(self, net: Net, iteration: int, every: int) -> None:
        """Tell speed, loss and outputs of an iteration; one is displayed every so many."""
        seconds, loss = perf_counter() - self._since, self.smoothed_loss
        speed = (iteration - self._first) / (seconds or 1)
        metrics = {"phase": "train", "iter": iteration}
        log.info(
            "Iteration %d (%s iter/s, %ss/%d iters), loss = %s",
            iteration, number(speed), number(seconds), every, number(loss),
            extra={"metrics": {**metrics, "loss": loss, "iterations_per_second": speed}},
        )  # fmt: skip
        self.start(iteration)
        outputs = {name: net.blob_by_name(name).cpu_data() for name in net.outputs}
        _tell_outputs("Train", net, outputs, metrics)

    def last(self, iteration: int) -> None:
        """Tell the loss after the last update."""
        loss = self.smoothed_loss
        metrics = {"phase": "train", "iter": iteration, "loss": loss}
        log.info("Iteration %d, loss = %s", iteration, number(loss), extra={"metrics": metrics})

    def rate(self, iteration: int, rate: float) -> None:
        """Tell the learning rate of an update that is about to be made."""
        metrics = {"phase": "train", "iter": iteration, "lr": rate}
        log.info("Iteration %d, lr = %s", iteration, number(rate), extra={"metrics": metrics})


def tell_test(
    net: Net, index: int, iteration: int, means: Mapping[str, np.ndarray], loss: float | None
) -> None:
    """Tell the means of a test net's outputs, and of its loss where it is wanted."""
    metrics = {"phase": "test", "net": index, "iter": iteration}
    if loss is not None:
        log.info("Test loss: %s", number(loss), extra={"metrics": {**metrics, "loss": loss}})
    _tell_outputs("Test", net, means, metrics)


def _tell_outputs(
    kind: str, net: Net, values: Mapping[str, np.ndarray], metrics: Mapping[str, Any]
) -> None:
    """Tell every output element of a net, with its share of the loss where it has one."""
    weights = dict(zip(net.blob_names, net.structure.blob_loss_weights, strict=True))
    index = 0
    for name, array in values.items():
        weight = weights[name]
        for value in array.reshape(-1).tolist():
            share = f" (* {number(weight)} = {number(weight * value)} loss)" if weight else ""
            log.info(
                "    %s net output #%d: %s = %s%s", kind, index, name, number(value), share,
                extra={"metrics": {**metrics, "output": index, "name": name, "value": value}},
            )  # fmt: skip
            index += 1
