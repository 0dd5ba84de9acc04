"""Metrics of tests: the best results, learning-rate steps at plateaus, and early stopping.

Source: Caffe's forks for the plateau policy (``GetLearningRate`` in Intel's and SSD's
``src/caffe/solvers/sgd_solver.cpp``); the rest is Demitasse's.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from demitasse.core.log import get_logger, number
from demitasse.core.text import suggestion
from demitasse.errors import ConfigError, ErrorCode
from demitasse.io.proto import ResumeState, SolverParameter
from demitasse.layers import Layer
from demitasse.layers.accuracy import Accuracy
from demitasse.layers.metadata import layer_metadata
from demitasse.net import Net
from demitasse.training.lr_policies import in_ramp

log = get_logger(__name__)

Results = Sequence[Mapping[str, np.ndarray]]

SMOOTHED = "smoothed loss"


@dataclass(frozen=True)
class Metric:
    """One number among the outputs of a test net, the output of ``layer``."""

    name: str
    larger: bool  # larger numbers are better
    net: int = 0  # index of the test net
    layer: Layer | None = field(default=None, compare=False)

    def value(self, results: Results) -> float:
        """Return the value in the results of all test nets.

        An accuracy is NaN if scores of the test's last batch are NaN: Caffe's layer counts such
        scores as right.
        """
        if isinstance(self.layer, Accuracy) and not self.layer.believable():
            return math.nan
        return float(results[self.net][self.name].reshape(()))


def find_metric(text: str, nets: Sequence[Net]) -> Metric:
    """Return the metric of an output of a test net, the first net that has it (ConfigError).

    The output is one number. The suffix ``:max`` or ``:min`` gives the better direction, which is
    known of accuracies and losses.
    """
    name, colon, suffix = text.rpartition(":")
    name, direction = (name, suffix) if colon and suffix in {"max", "min"} else (text, "")
    for index, net in enumerate(nets):
        if name not in net.outputs:
            continue
        blob = net.blob_by_name(name)
        writers = {top.name: at.layer for at in net.structure.bindings() for top in at.top}
        layer = writers[name]  # the last that writes it
        if blob.count != 1 and layer.type != "DetectionEvaluate":  # whose result is one number
            message = f"got metric {name!r} of shape {blob.shape}, expected one number"
            details: Any = {"output": name, "got": blob.count, "expected": 1}
            raise ConfigError(message, code=ErrorCode.COUNT_MISMATCH, **details)
        better = direction or layer_metadata(layer.type).better
        if not direction and net.structure.blob_loss_weights[net.blob_names.index(name)] > 0:
            better = "min"
        if not better:
            message = (
                f"the better direction of {name!r} (of a {layer.type} layer) is unknown; give "
                f"{name}:max or {name}:min"
            )
            raise ConfigError(message, code=ErrorCode.INVALID, output=name)
        return Metric(name, better in {"max", "larger"}, index, layer)
    outputs = list(dict.fromkeys(output for net in nets for output in net.outputs))
    known = f"their outputs are {', '.join(outputs)}" if outputs else "there are none"
    message = f"no test net has the output {name!r}{suggestion(name, outputs)}; {known}"
    raise ConfigError(message, code=ErrorCode.UNKNOWN, output=name, known=outputs)


class BestValue:
    """The best value of a metric so far, its iteration, and the number of values since.

    ``role`` is the purpose of the metric, e.g. "keep_best"; ``min_delta`` the minimum improvement
    that counts.
    """

    def __init__(self, role: str, name: str, *, larger: bool, min_delta: float = 0.0) -> None:
        self.role, self.name, self.larger, self.min_delta = role, name, larger, min_delta
        self.value: float | None = None
        self.iter = self.tests = 0

    def update(self, value: float, iteration: int) -> bool:
        """Add a value; return whether it is the best so far. NaN never is."""
        if self.value is None:
            better = not math.isnan(value)
        else:
            gain = value - self.value if self.larger else self.value - value
            better = gain > self.min_delta
        if better:
            self.value, self.iter, self.tests = value, iteration, 0
        else:
            self.tests += 1
        return better

    def to_proto(self) -> ResumeState.Watch:
        """Return the state for a snapshot."""
        return ResumeState.Watch(
            role=self.role, metric=self.name, best=self.value, iter=self.iter, tests=self.tests
        )

    def load(self, watch: ResumeState.Watch | None) -> None:
        """Restore a state of ``to_proto``; reset if the state is of another metric."""
        if watch is None or watch.metric != self.name:
            watch = ResumeState.Watch()
        self.value = watch.best if watch.HasField("best") else None
        self.iter, self.tests = watch.iter, watch.tests

    def __str__(self) -> str:
        return "none" if self.value is None else number(self.value)


@dataclass(frozen=True)
class EarlyStopping:
    """Condition to stop training before ``max_iter``.

    Attributes:
        metric: An output of a test net, with ``:max`` or ``:min`` if it is neither an accuracy nor
            a loss.
        patience: Number of tests without an improvement after which training stops.
        min_delta: Minimum improvement that counts.
    """

    metric: str
    patience: int
    min_delta: float = 0.0


class MetricMonitor:
    """Follows the metrics of tests.

    The last test ``improved`` the best so far, by ``keep_best``; training ``should_stop`` early.
    """

    def __init__(
        self,
        param: SolverParameter,
        nets: Sequence[Net],
        keep_best: str | None = None,
        early: EarlyStopping | None = None,
    ) -> None:
        self._metrics: list[tuple[Metric, BestValue]] = []
        self._keep: BestValue | None = None
        self._early: BestValue | None = None
        self._plateau = BestValue("plateau", SMOOTHED, larger=False)
        self._patience = early.patience if early else 0
        if keep_best is not None:
            self._keep = self._add("keep_best", keep_best, nets)
        if early is not None:
            self._early = self._add("early_stopping", early.metric, nets, early.min_delta)
        if param.lr_policy == "plateau" and param.plateau_metric:
            self._plateau = self._add("plateau", param.plateau_metric, nets)
        self._before: ResumeState.Watch | None = None  # of ``keep_best``, before the last test
        self._last_event = 0  # iteration of the last improvement or step of the plateau policy
        self.improved = False

    def _add(self, role: str, text: str, nets: Sequence[Net], min_delta: float = 0.0) -> BestValue:
        metric = find_metric(text, nets)
        best = BestValue(role, text, larger=metric.larger, min_delta=min_delta)
        self._metrics.append((metric, best))
        return best

    def values(self, results: Results) -> dict[str, float]:
        """Return the value of each metric, by its role, in the results of all test nets."""
        return {best.role: metric.value(results) for metric, best in self._metrics}

    def update(self, values: Mapping[str, float], iteration: int) -> None:
        """Add the values of all metrics."""
        self.improved = False
        self._before = None if self._keep is None else self._keep.to_proto()
        for _, best in self._metrics:
            if best.update(values[best.role], iteration):
                self.improved |= best is self._keep
                if best is self._plateau:
                    self._last_event = iteration
        if self._early is not None and self.should_stop:
            log.info(
                "Early stopping: %s has not improved in %d tests; it was best at iteration %d: %s",
                self._early.name, self._early.tests, self._early.iter, self._early,
            )  # fmt: skip

    @property
    def should_stop(self) -> bool:
        """True after ``patience`` tests without an improvement."""
        return self._early is not None and self._early.tests >= self._patience

    @property
    def best(self) -> str:
        """Name and best value of ``keep_best``, for the log; empty without it."""
        return "" if self._keep is None else f"{self._keep.name} = {self._keep}"

    def forget_best(self) -> None:
        """Undo the last improvement, so that weights that are less good are kept in its place."""
        if self._keep is not None:
            self._keep.load(self._before)
            self._keep.tests += 1
        self.improved = False

    def plateau_step(self, param: SolverParameter, iteration: int, loss: float, step: int) -> int:
        """Return the step of the plateau policy for an update, from loss and step of the last."""
        if in_ramp(param, iteration):
            return step
        best = self._plateau
        if best.name == SMOOTHED and best.update(loss, iteration):
            self._last_event = iteration
        windows = param.plateau_winsize
        if step < len(windows) and iteration - self._last_event >= windows[step]:
            step += 1
            self._last_event = iteration
            log.info("Plateau Status: Iteration %d, step = %d", iteration, step)
        every = param.display
        if every and iteration % every == 0 and self._last_event > iteration - every:
            name = "current minimum_loss" if best.name == SMOOTHED else f"best {best.name}"
            log.info("Plateau Status: Iteration %d, %s = %s", iteration, name, best)
        return step

    def to_proto(self) -> list[ResumeState.Watch]:
        """Return the state for a snapshot."""
        bests = [best for best in (self._keep, self._early) if best is not None]
        if self._last_event or self._plateau.value is not None:
            bests.append(self._plateau)
        messages = [best.to_proto() for best in bests]
        for message in messages:
            if message.role == "plateau":
                message.event = self._last_event
        return messages

    def load(self, messages: Iterable[ResumeState.Watch]) -> None:
        """Restore a state of ``to_proto``."""
        roles = {message.role: message for message in messages}
        for best in (self._keep, self._early, self._plateau):
            if best is not None:
                best.load(roles.get(best.role))
        plateau = roles.get("plateau")
        same = plateau is not None and plateau.metric == self._plateau.name
        self._last_event = plateau.event if plateau is not None and same else 0
        self.improved = False
