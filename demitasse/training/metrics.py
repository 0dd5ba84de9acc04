"""Numbers that tests give, and the best of each so far."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from demitasse.core.text import suggestion
from demitasse.errors import ConfigError, ErrorCode
from demitasse.io.proto import ResumeState
from demitasse.layers import Layer
from demitasse.layers.accuracy import Accuracy
from demitasse.layers.metadata import layer_metadata
from demitasse.net import Net

__all__ = ["Best", "Metric", "find_metric"]


@dataclass(frozen=True)
class Metric:
    """One number that a test net puts out.

    Attributes:
        name: The output.
        larger: Whether a larger number is better.
        net: Which test net.
        layer: The layer that puts it out.
    """

    name: str
    larger: bool
    net: int = 0
    layer: Layer | None = field(default=None, compare=False)

    def of(self, results: Sequence[Mapping[str, np.ndarray]]) -> float:
        """Return its value in the results of all test nets.

        An accuracy of scores that are not numbers, in the last batch of the test, is none either:
        Caffe's layer takes them for right.
        """
        if isinstance(self.layer, Accuracy) and not self.layer.believable():
            return math.nan
        return float(results[self.net][self.name].reshape(()))


def find_metric(text: str, nets: Sequence[Net]) -> Metric:
    """Return the metric that a text names.

    Args:
        text: An output of a test net; the first net that has it counts. ``:max`` or ``:min`` after
            it says what is better; without, that is known of accuracies and losses only.
        nets: The test nets.

    Raises:
        ConfigError: There is no such output, it is more than one number, or it is not known
            whether more is better.
    """
    name, colon, end = text.rpartition(":")
    name, way = (name, end) if colon and end in {"max", "min"} else (text, "")
    for index, net in enumerate(nets):
        if name not in net.outputs:
            continue
        blob = net.blob_by_name(name)
        if blob.count != 1 and _maker(net, name).type != "DetectionEvaluate":  # judged by the test
            message = f"the metric {name!r} is {blob.count} numbers {blob.shape}; it must be one"
            raise ConfigError(
                message, code=ErrorCode.COUNT_MISMATCH, output=name, got=blob.count, expected=1
            )
        larger = way == "max" if way else _larger(net, name)
        return Metric(name, larger, index, _maker(net, name))
    outputs = list(dict.fromkeys(output for net in nets for output in net.outputs))
    has = f"their outputs are {', '.join(outputs)}" if outputs else "there is none"
    near = suggestion(name, outputs)
    message = f"no test net has an output {name!r} that could be the metric{near}; {has}"
    raise ConfigError(message, code=ErrorCode.UNKNOWN, output=name, known=outputs)


def _maker(net: Net, name: str) -> Layer:
    """Return the layer that writes an output last."""
    return [
        layer
        for index, layer in enumerate(net.layers)
        if name in [net.blob_names[top] for top in net.structure.top_ids(index)]
    ][-1]


def _larger(net: Net, name: str) -> bool:
    """Whether more of an output is better."""
    weights = dict(zip(net.blob_names, net.structure.blob_loss_weights, strict=True))
    kind = _maker(net, name).type
    if weights[name] > 0:
        return False
    if better := layer_metadata(kind).better:
        return better == "larger"
    message = f"is more of {name!r} (of a {kind} layer) better? Say {name}:max or {name}:min"
    raise ConfigError(message, code=ErrorCode.INVALID, output=name)


class Best:
    """The best value of something that is watched.

    Args:
        role: What it is watched for, e.g. "keep_best".
        name: What is watched.
        larger: Whether larger values are better.
        least: What a value must be better by.

    Attributes:
        value: The best one, or None before the first.
        iter: The iteration it is from.
        tests: Values since then.
    """

    def __init__(self, role: str, name: str, *, larger: bool, least: float = 0.0) -> None:
        self.role, self.name, self.larger, self.least = role, name, larger, least
        self.value: float | None = None
        self.iter = self.tests = 0
        self._before: tuple[float | None, int, int] = None, 0, 0

    def observe(self, value: float, iteration: int) -> bool:
        """Take note of a value; return whether it is the best so far. NaN never is."""
        self._before = self.value, self.iter, self.tests
        if self._better(value):
            self.value, self.iter, self.tests = value, iteration, 0
            return True
        self.tests += 1
        return False

    def forget(self) -> None:
        """Take the last value, the best so far, for one that was not better."""
        self.value, self.iter, self.tests = self._before
        self.tests += 1

    def _better(self, value: float) -> bool:
        if self.value is None:
            return not math.isnan(value)
        gain = value - self.value if self.larger else self.value - value
        return gain > self.least

    def to_proto(self) -> ResumeState.Watch:
        """Return what a snapshot is to keep of it."""
        return ResumeState.Watch(
            role=self.role, metric=self.name, best=self.value, iter=self.iter, tests=self.tests
        )

    def load(self, watch: ResumeState.Watch | None) -> None:
        """Go on from what ``to_proto`` gave; from nothing where it was about something else."""
        if watch is None or watch.metric != self.name:
            watch = ResumeState.Watch()
        self.value = watch.best if watch.HasField("best") else None
        self.iter, self.tests = watch.iter, watch.tests
