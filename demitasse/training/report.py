"""Report of training: the log in Caffe's words, throughput, and the numbers for loggers.

Each log line about training has its numbers in the record's ``metrics``, too.

Source: Caffe, ``Solver::Step`` and ``Solver::Test`` in ``src/caffe/solver.cpp``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.json_format import MessageToDict

from demitasse.blob.distribution import distribution
from demitasse.core.deprecated import deprecated_names
from demitasse.core.log import get_logger, number
from demitasse.io.proto import SolverParameter
from demitasse.io.proto.write import text_of
from demitasse.layers.checks import at_least
from demitasse.layers.data_layers.base import PrefetchingDataLayer
from demitasse.net import Net
from demitasse.training.distributed import WaitTimes
from demitasse.training.tracking import LoggerGroup
from demitasse.version import __version__

if TYPE_CHECKING:
    from demitasse.training.solver import Solver

log = get_logger(__name__)

Outputs = Mapping[str, np.ndarray]

MOST_ELEMENTS = 16
"""Elements of an output that loggers receive; larger outputs are maps and features, no curves."""


def batch_size_of(net: Net) -> int:
    """Return the first axis of the first input blob of a net; 0 if there is none."""
    structure = net.structure
    first = next((node.tops[0] for node in structure.graph.nodes if not node.bottoms), None)
    shape = () if first is None else structure.blob_list[first].shape
    return shape[0] if shape else 0


def _seconds_waited(net: Net) -> float | None:
    """Return the seconds that a net waited for batches; None without prefetching layers."""
    times = [layer.waited for layer in net.layers if isinstance(layer, PrefetchingDataLayer)]
    return sum(times) if times else None


def run_metadata(param: SolverParameter, net: Net, world_size: int) -> dict[str, object]:
    """Return the facts of the event ``begin``: fields that are set, and the net as built."""
    fields = SolverParameter()
    fields.CopyFrom(param)
    for name in ("net_param", "train_net_param", "test_net_param", "train_state", "test_state",
                 "type", "random_seed"):  # fmt: skip
        fields.ClearField(name)
    return MessageToDict(fields, preserving_proto_field_name=True) | {
        "demitasse": __version__, "net": net.name, "device": net.device.name, "dtype": net.dtype,
        "solver": param.type,
        "base_lr": float(number(param.base_lr)),  # as written, without the digits of float32
        "lr_policy": param.lr_policy, "max_iter": param.max_iter, "batch": batch_size_of(net),
        "iter_size": param.iter_size, "ranks": world_size, "seed": net.seed,
        "prototxt": text_of(net.structure.message),
    }  # fmt: skip


class TrainReport:
    """The last losses, the speed, and the log of training and tests.

    The displayed loss is averaged over ``window`` iterations. An iteration has ``passes`` passes of
    the net, on all ranks.
    """

    def __init__(self, window: int, loggers: LoggerGroup, passes: int) -> None:
        self.losses: deque[float] = deque(maxlen=window)
        self.loggers = loggers
        self._passes, self._wait_times = passes, WaitTimes()
        self._since = self._seconds = self._waited = 0.0
        self._first = 0  # iteration of the last display
        self._stopped: int | None = None  # iteration of the last stop

    @property
    def smoothed_loss(self) -> float:
        """Mean of the losses in the window; NaN if there are none."""
        # math.fsum would raise an error for losses that are infinite or nearly so.
        return sum(self.losses) / len(self.losses) if self.losses else math.nan

    def start(self, net: Net, iteration: int) -> None:
        """Measure speed from now on, and from the last display on if the run was stopped here."""
        if iteration != self._stopped:
            self._first, self._seconds = iteration, 0.0
            self._waited = _seconds_waited(net) or 0.0
        self._since = perf_counter() - self._seconds

    def stop(self, iteration: int) -> None:
        """Measure no speed until the next start."""
        self._stopped, self._seconds = iteration, perf_counter() - self._since

    def set_window(self, window: int) -> None:
        """Average the displayed loss over another number of iterations."""
        if window != self.losses.maxlen:
            self.losses = deque(self.losses, maxlen=window)

    def set_losses(self, losses: Iterable[float]) -> None:
        """Replace the losses in the window, oldest first."""
        self.losses.clear()
        self.losses.extend(losses)

    def display(self, net: Net, iteration: int, every: int) -> None:
        """Log speed, loss and outputs after so many updates, ``every`` since the last display."""
        iterations, seconds = iteration - self._first, perf_counter() - self._since
        speed, loss = iterations / (seconds or 1), self.smoothed_loss
        metrics = {"phase": "train", "iter": iteration}
        log.info(
            "Iteration %d (%s iter/s, %ss/%d iters), loss = %s",
            iteration, number(speed), number(seconds), every, number(loss),
            extra={"metrics": {**metrics, "loss": loss, "iterations_per_second": speed}},
        )  # fmt: skip
        rates = {}
        if iterations:
            rates["iterations_per_second"] = speed
            if images := batch_size_of(net) * self._passes:
                rates["images_per_second"] = images * speed
            if (waited := _seconds_waited(net)) is not None:
                # A data source that was opened again counts from 0.
                waited = max(0.0, waited - self._waited)
                rates["data_wait"] = min(1.0, waited / (seconds or 1))
        self._stopped = None
        self.start(net, iteration)
        outputs = {name: net.blob_by_name(name).cpu_data() for name in net.outputs}
        _log_outputs("Train", net, outputs, metrics)
        losses = {"loss": self.losses[-1], "smoothed_loss": loss}
        self.loggers.scalars(iteration, losses | rates | _scalars("train", outputs))

    def log_wait_times(self, iteration: int, wait_times: WaitTimes) -> None:
        """Log the time that processes have waited since the last call; nothing of one process."""
        if len(wait_times.synchronizing) < 2:
            return
        now, self._wait_times = wait_times.since(self._wait_times), wait_times
        slowest, waited, reduced = now.slowest, max(now.synchronizing), max(now.reducing)
        metrics = {"phase": "train", "iter": iteration, "slowest": slowest}
        log.info(
            "    Waited %s s for process %d, the slowest; added up for %s s",
            number(waited), slowest, number(reduced),
            extra={"metrics": {**metrics, "waited": waited, "added": reduced}},
        )  # fmt: skip
        values = {f"waiting/process {rank}": time for rank, time in enumerate(now.synchronizing)}
        self.loggers.scalars(iteration, values | {"adding_up": reduced})

    def log_last_loss(self, iteration: int) -> None:
        """Log the loss after the last update."""
        loss = self.smoothed_loss
        metrics = {"phase": "train", "iter": iteration, "loss": loss}
        log.info("Iteration %d, loss = %s", iteration, number(loss), extra={"metrics": metrics})
        self.loggers.scalars(iteration, {"loss": self.losses[-1], "smoothed_loss": loss})

    def log_rate(self, iteration: int, rate: float) -> None:
        """Log the learning rate of the next update."""
        metrics = {"phase": "train", "iter": iteration, "lr": rate}
        log.info("Iteration %d, lr = %s", iteration, number(rate), extra={"metrics": metrics})
        self.loggers.scalars(iteration, {"learning_rate": rate})

    def log_test(
        self, net: Net, index: int, iteration: int, means: Outputs, loss: float | None
    ) -> None:
        """Log the means of a test net's outputs, and of its loss unless None."""
        metrics = {"phase": "test", "net": index, "iter": iteration}
        if loss is not None:
            log.info("Test loss: %s", number(loss), extra={"metrics": {**metrics, "loss": loss}})
        _log_outputs("Test", net, means, metrics)
        losses = {} if loss is None else {f"test{index}_loss": loss}
        self.loggers.scalars(iteration, {**losses, **_scalars(f"test{index}", means)})


def _scalars(group: str, values: Outputs) -> dict[str, float]:
    """Return outputs as ``group/NAME``, or ``group/NAME[i]`` if one has several elements."""
    scalars = {}
    for name, array in values.items():
        elements = array.reshape(-1).tolist()
        if len(elements) == 1:
            scalars[f"{group}/{name}"] = elements[0]
        elif len(elements) <= MOST_ELEMENTS:
            scalars |= {f"{group}/{name}[{i}]": value for i, value in enumerate(elements)}
    return scalars


def _log_outputs(kind: str, net: Net, values: Outputs, metrics: Mapping[str, Any]) -> None:
    """Log every output element of a net, with its part of the loss if it has one."""
    weights = dict(zip(net.blob_names, net.structure.blob_loss_weights, strict=True))
    elements = [(name, x) for name, array in values.items() for x in array.reshape(-1).tolist()]
    for index, (name, value) in enumerate(elements):
        weight = weights[name]
        part = f" (* {number(weight)} = {number(weight * value)} loss)" if weight else ""
        log.info(
            "    %s net output #%d: %s = %s%s", kind, index, name, number(value), part,
            extra={"metrics": {**metrics, "output": index, "name": name, "value": value}},
        )  # fmt: skip


def log_histograms(solver: Solver, every: int) -> None:
    """Send histograms of weights and gradients to the loggers of a solver, every few iterations.

    Loggers receive the event ``distributions`` with a histogram of every parameter and of its
    gradient, and the number ``gradient_norm``, the norm of all gradients together. Gradients are
    the sums over ``iter_size`` batches, before clipping; of several ranks, those of rank 0.
    Iterations in between cost nothing.

    Args:
        solver: The solver.
        every: Iterations from one event to the next; the first event is at once.

    Raises:
        ConfigError: ``every`` is no whole number above 0.
    """
    at_least(1, "every", every)

    def send() -> None:
        parameters: dict[str, dict[str, Any]] = {}
        norms = []
        net = solver.net
        for record, blob in zip(net.structure.learnable_records, net.learnable_params, strict=True):
            name = f"{net.layer_names[record.layer]}/{record.index}"
            weights, gradients = distribution(blob), distribution(blob, diff=True)
            found = {"weights": weights, "gradients": gradients}
            parameters[name] = {kind: asdict(one) for kind, one in found.items() if one is not None}
            if gradients is not None:
                norms.append(gradients.norm)
        solver.log_event("distributions", {"parameters": parameters})
        solver.log_scalars({"gradient_norm": math.hypot(*norms)})

    def begin() -> None:
        """Add the callback in these iterations alone: with it an update cannot be queued ahead."""
        wanted, added = solver.iter % every == 0, send in solver.on_gradients_ready
        if wanted and not added:
            solver.on_gradients_ready.append(send)
        elif added and not wanted:
            solver.on_gradients_ready.remove(send)

    solver.on_start.append(begin)


__getattr__ = deprecated_names(__name__, {"tell_distributions": "log_histograms"})
