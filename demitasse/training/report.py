"""What a solver says while it runs, in lines that Caffe's log parsers read.

Each line about training carries its numbers in the record's ``metrics`` too.

Source: Caffe, ``Solver::Step`` and ``Solver::Test`` in ``src/caffe/solver.cpp``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from demitasse.core.log import get_logger, number
from demitasse.net import Net
from demitasse.training.distributed.group import WaitTimes
from demitasse.training.pace import Pace, images_of_a_pass
from demitasse.training.tracking import Broadcast

__all__ = ["TrainReport"]

log = get_logger(__name__)

MOST_ELEMENTS = 16
"""Elements of an output that loggers are told; larger ones are maps and features, no curves."""


class TrainReport:
    """The losses of the last iterations, the clock, and what is said about training and tests.

    Args:
        window: How many iterations the displayed loss is the mean of.
        loggers: Told the numbers, too; None where there are none.
        passes: How many passes of the net, on all ranks, make an iteration.
    """

    def __init__(self, window: int, loggers: Broadcast | None = None, passes: int = 1) -> None:
        self.losses: deque[float] = deque(maxlen=window)
        self.loggers = Broadcast([], dict) if loggers is None else loggers
        self._passes, self._pace = passes, Pace()
        self._waited = WaitTimes()

    @property
    def smoothed_loss(self) -> float:
        """Mean of the losses in the window; NaN when there are none."""
        # Not fsum, which raises where losses are infinite or nearly so.
        return sum(self.losses) / len(self.losses) if self.losses else math.nan

    def start(self, net: Net, iteration: int) -> None:
        """Measure speed from here on."""
        self._pace.start(net, iteration)

    def set_losses(self, losses: Iterable[float]) -> None:
        """Put losses, oldest first, in place of those in the window."""
        self.losses.clear()
        self.losses.extend(losses)

    def display(self, net: Net, iteration: int, every: int) -> None:
        """Tell speed, loss and outputs of an iteration; one is displayed every so many."""
        pace, loss = self._pace.measure(net, iteration), self.smoothed_loss
        seconds, speed = pace.seconds, pace.iterations_per_second
        metrics = {"phase": "train", "iter": iteration}
        log.info(
            "Iteration %d (%s iter/s, %ss/%d iters), loss = %s",
            iteration, number(speed), number(seconds), every, number(loss),
            extra={"metrics": {**metrics, "loss": loss, "iterations_per_second": speed}},
        )  # fmt: skip
        self.start(net, iteration)
        outputs = {name: net.blob_by_name(name).cpu_data() for name in net.outputs}
        _tell_outputs("Train", net, outputs, metrics)
        rates = pace.rates(images_of_a_pass(net) * self._passes)
        self.loggers.scalars(
            iteration,
            {"loss": self.losses[-1], "smoothed_loss": loss, **rates, **_scalars("train", outputs)},
        )

    def waiting(self, iteration: int, waiting: WaitTimes) -> None:
        """Tell how long processes have waited since the last time; of one there is nothing."""
        if len(waiting.synchronizing) < 2:
            return
        now, self._waited = waiting.since(self._waited), waiting
        slowest, longest = now.slowest, max(now.synchronizing)
        metrics = {"phase": "train", "iter": iteration, "slowest": slowest}
        log.info(
            "    Waited %s s for process %d, the slowest; added up for %s s",
            number(longest), slowest, number(max(now.reducing)),
            extra={"metrics": {**metrics, "waited": longest, "added": max(now.reducing)}},
        )  # fmt: skip
        told = {f"waiting/process {rank}": one for rank, one in enumerate(now.synchronizing)}
        self.loggers.scalars(iteration, told | {"adding_up": max(now.reducing)})

    def last(self, iteration: int) -> None:
        """Tell the loss after the last update."""
        loss = self.smoothed_loss
        metrics = {"phase": "train", "iter": iteration, "loss": loss}
        log.info("Iteration %d, loss = %s", iteration, number(loss), extra={"metrics": metrics})
        self.loggers.scalars(iteration, {"loss": self.losses[-1], "smoothed_loss": loss})

    def rate(self, iteration: int, rate: float) -> None:
        """Tell the learning rate of an update that is about to be made."""
        metrics = {"phase": "train", "iter": iteration, "lr": rate}
        log.info("Iteration %d, lr = %s", iteration, number(rate), extra={"metrics": metrics})
        self.loggers.scalars(iteration, {"learning_rate": rate})

    def test(
        self,
        net: Net,
        index: int,
        iteration: int,
        means: Mapping[str, np.ndarray],
        loss: float | None,
    ) -> None:
        """Tell the means of a test net's outputs, and of its loss where it is wanted."""
        metrics = {"phase": "test", "net": index, "iter": iteration}
        if loss is not None:
            log.info("Test loss: %s", number(loss), extra={"metrics": {**metrics, "loss": loss}})
        _tell_outputs("Test", net, means, metrics)
        whole = {} if loss is None else {f"test{index}_loss": loss}
        self.loggers.scalars(iteration, {**whole, **_scalars(f"test{index}", means)})


def _scalars(group: str, values: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return outputs as ``group/NAME``, or ``group/NAME[i]`` where one has several elements."""
    found = {}
    for name, array in values.items():
        elements = array.reshape(-1).tolist()
        if len(elements) == 1:
            found[f"{group}/{name}"] = elements[0]
        elif len(elements) <= MOST_ELEMENTS:
            found |= {f"{group}/{name}[{i}]": value for i, value in enumerate(elements)}
    return found


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
