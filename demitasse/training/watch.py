"""What a solver does about the results of its tests: keep the best, step down, stop early.

Source: Caffe's forks for the plateau policy (``GetLearningRate`` in Intel's and SSD's
``src/caffe/solvers/sgd_solver.cpp``); the rest is ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from demitasse.core.log import get_logger, number
from demitasse.errors import ConfigError, ErrorCode
from demitasse.io.proto import ResumeState, SolverParameter
from demitasse.net import Net
from demitasse.training.metrics import Best, Metric, find_metric
from demitasse.training.policies import in_ramp

__all__ = ["EarlyStopping", "Watch"]

log = get_logger(__name__)

Results = Sequence[Mapping[str, np.ndarray]]

SMOOTHED = "smoothed loss"


@dataclass(frozen=True)
class EarlyStopping:
    """When to stop before ``max_iter``.

    Attributes:
        metric: An output of a test net, with ``:max`` or ``:min`` where it is neither an accuracy
            nor a loss.
        patience: Stop after so many tests without a better value.
        min_delta: How much better it must be to count.
    """

    metric: str
    patience: int
    min_delta: float = 0.0


class Watch:
    """Watches the results of tests.

    Args:
        param: The solver's fields.
        nets: The test nets.
        keep_best: The metric whose best weights are kept, or None.
        early: When to stop early, or None.

    Attributes:
        improved: Whether the last test was the best so far, by ``keep_best``.
        exhausted: Whether it is time to stop early.

    Raises:
        ConfigError: A metric is not what a test net puts out; a patience is below 1.
    """

    def __init__(
        self,
        param: SolverParameter,
        nets: Sequence[Net],
        keep_best: str | None = None,
        early: EarlyStopping | None = None,
    ) -> None:
        self._watched: list[tuple[Metric, Best]] = []
        self._keep = self._new("keep_best", keep_best, nets)
        self._early = self._new("early_stopping", early.metric if early else None, nets)
        if early is not None and self._early is not None:
            if early.patience < 1 or not early.min_delta >= 0:
                message = f"patience must be at least 1 and min_delta at least 0: {early}"
                raise ConfigError(message, code=ErrorCode.OUT_OF_RANGE, field="early_stopping")
            self._early.least, self._patience = early.min_delta, early.patience
        metric = param.plateau_metric if param.lr_policy == "plateau" else ""
        self._plateau = self._new("plateau", metric or None, nets) or Best(
            "plateau", SMOOTHED, larger=False
        )
        self._event = 0
        self.improved = self.exhausted = False

    def _new(self, role: str, text: str | None, nets: Sequence[Net]) -> Best | None:
        if text is None:
            return None
        metric = find_metric(text, nets)
        best = Best(role, text, larger=metric.larger)
        self._watched.append((metric, best))
        return best

    def tested(self, results: Results, iteration: int) -> None:
        """Take note of the results of all test nets."""
        self.improved = False
        for metric, best in self._watched:
            better = best.observe(metric.of(results), iteration)
            if better and best is self._keep:
                self.improved = True
            if better and best is self._plateau:
                self._event = iteration
        if self._early is not None and self._early.tests >= self._patience:
            self.exhausted = True
            log.info(
                "Early stopping: %s has not improved in %d tests; it was best at iteration %d: %s",
                self._early.name, self._early.tests, self._early.iter, _shown(self._early),
            )  # fmt: skip

    @property
    def best(self) -> str:
        """What ``keep_best`` has found so far, for the log."""
        return "" if self._keep is None else f"{self._keep.name} = {_shown(self._keep)}"

    def forget_best(self) -> None:
        """Forget what the last test improved, so that weights less good are kept in its place."""
        if self._keep is not None:
            self._keep.forget()
        self.improved = False

    def plateau_step(self, param: SolverParameter, iteration: int, loss: float, step: int) -> int:
        """Return the step of the plateau policy for an update.

        Args:
            param: The solver's fields.
            iteration: Number of updates made so far.
            loss: The smoothed loss.
            step: The step of the last update.
        """
        if in_ramp(param, iteration):
            return step
        best = self._plateau
        if best.name == SMOOTHED and best.observe(loss, iteration):
            self._event = iteration
        windows = param.plateau_winsize
        if step < len(windows) and iteration - self._event >= windows[step]:
            step += 1
            self._event = iteration
            log.info("Plateau Status: Iteration %d, step = %d", iteration, step)
        every = param.display
        if every and iteration % every == 0 and self._event > iteration - every:
            what = "current minimum_loss" if best.name == SMOOTHED else f"best {best.name}"
            log.info("Plateau Status: Iteration %d, %s = %s", iteration, what, _shown(best))
        return step

    def to_proto(self) -> list[ResumeState.Watch]:
        """Return what a snapshot is to keep."""
        bests = [best for best in (self._keep, self._early) if best is not None]
        if self._event or self._plateau.value is not None:
            bests.append(self._plateau)
        messages = [best.to_proto() for best in bests]
        for message in messages:
            if message.role == "plateau":
                message.event = self._event
        return messages

    def load(self, messages: Iterable[ResumeState.Watch]) -> None:
        """Go on from what ``to_proto`` gave."""
        roles = {message.role: message for message in messages}
        for best in (self._keep, self._early, self._plateau):
            if best is not None:
                best.load(roles.get(best.role))
        plateau = roles.get("plateau")
        same = plateau is not None and plateau.metric == self._plateau.name
        self._event = plateau.event if plateau is not None and same else 0
        self.improved = self.exhausted = False


def _shown(best: Best) -> str:
    return "none" if best.value is None else number(best.value)
