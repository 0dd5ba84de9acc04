"""Evaluation of test nets: batches or whole epochs, by one process or several.

The mean of each output is computed over ``test_iter`` batches, or over every record exactly once
with ``test_iter: 0``.

Source: Caffe, ``Solver::Test`` in ``src/caffe/solver.cpp``; whole epochs are Demitasse's. Average
precision: SSD (weiliu89/caffe), ``Solver::TestDetection`` there, and ``ComputeAP`` in
``src/caffe/util/bbox_util.cpp``.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from demitasse.backends.arrays import Array
from demitasse.core.log import get_logger
from demitasse.errors import ConfigError, DataError, ErrorCode, ShapeError
from demitasse.io.data.sources.source import Shard
from demitasse.io.proto import SolverParameter
from demitasse.layers import Layer
from demitasse.layers.data_layers.base import EpochDataLayer, PrefetchingDataLayer
from demitasse.layers.metadata import layer_metadata
from demitasse.net import Net
from demitasse.training.context import Requests, TrainingContext
from demitasse.training.distributed import WorkerGroup, first_request

OnBatch = Callable[[int, int, int], None]
"""Receives index of a test net, number of batches done, and of all batches; 0 for an epoch."""

Result = TypeVar("Result")

Batch = tuple[int, float, Result]
"""Weight of a batch in the means, its loss, and the result that was read from the net."""

log = get_logger(__name__)


# -- batches -----------------------------------------------------------------------------------


class Epoch:
    """One pass over the records that a net's data layers read; the last batch may be smaller.

    Raises:
        ConfigError: No layer has a last record, or a layer without one reads data, too.
    """

    def __init__(self, net: Net) -> None:
        self._net = net
        self._sources: list[EpochDataLayer] = []
        for index, layer in enumerate(net.layers):
            if isinstance(layer, EpochDataLayer):
                self._sources.append(layer)
            elif not net.structure.bottom_ids(index) and layer_metadata(layer.type).records:
                message = (
                    f"layer {layer.name!r} ({layer.type}) has no last record, so there is no "
                    "whole epoch; give the number of batches"
                )
                raise ConfigError(message, code=ErrorCode.UNSUPPORTED, layer=layer.name)
        if not self._sources:
            message = "no layer reads records, so there is no epoch; give the number of batches"
            raise ConfigError(message, code=ErrorCode.UNSUPPORTED)

    def batches(self) -> Iterator[tuple[int, float]]:
        """Run the net over its records, from the first on; yield records and loss of each batch.

        Raises:
            ConfigError: Data layers of the net read unequal numbers of records.
        """
        self.begin()
        ended = False
        while not ended:
            loss = self._net.forward()
            records, ended = self.last_batch()
            yield records, loss

    def begin(self) -> None:
        """Go back to the first record."""
        for layer in self._sources:
            layer.begin_epoch()

    def last_batch(self) -> tuple[int, bool]:
        """Return the number of records of the last batch, and whether it ended the epoch."""
        batches = {(layer.batch_records, layer.epoch_ended) for layer in self._sources}
        if len(batches) != 1:
            counts = ", ".join(f"{layer.name!r} {layer.batch_records}" for layer in self._sources)
            message = (
                "the data layers read unequal numbers of records or unequal batches, so they "
                f"have no common epoch; in the last batch: {counts}"
            )
            names = [layer.name for layer in self._sources]
            raise ConfigError(message, code=ErrorCode.COUNT_MISMATCH, layers=names)
        return batches.pop()

    @property
    def ended(self) -> bool:
        """True once the last record has been read or skipped."""
        return any(layer.epoch_ended for layer in self._sources)


class LocalEvaluator:
    """Runs the batches of a test in this process, while ``should_continue``, called before each."""

    distributed = False

    def __init__(self, should_continue: Callable[[], bool] = lambda: True) -> None:
        self._should_continue = should_continue

    def run(self, net: Net, batches: int, read: Callable[[int], Result]) -> Iterator[Batch[Result]]:
        """Run batches, one after the other; yield weight, loss and result of each.

        With 0 batches the run is a whole epoch: every record once, and the weight of a batch is the
        number of its records. ``read`` is called after each batch with its weight, and reads a
        result from the net.
        """
        runs = ((1, net.forward()) for _ in range(batches)) if batches else Epoch(net).batches()
        while self._should_continue() and (batch := next(runs, None)) is not None:
            weight, loss = batch
            yield weight, loss, read(weight)


class DistributedEvaluator:
    """Shares out batches among all processes of a run.

    In each round every process runs one batch. Results are gathered after the round, and come in
    the order of the batches: their sums have the bits of a single process.

    ``next_request`` returns the next request to this process; the processes agree on one.
    ``should_continue`` is called with the number of batches done and that request, before the first
    batch and after each round; False ends the test.
    """

    distributed = True

    def __init__(
        self,
        team: WorkerGroup,
        next_request: Callable[[], str | None],
        should_continue: Callable[[int, str | None], bool],
    ) -> None:
        self._team, self._next_request = team, next_request
        self._should_continue = should_continue

    def run(self, net: Net, batches: int, read: Callable[[int], Result]) -> Iterator[Batch[Result]]:
        """Run batches in their order, as many at a time as there are processes."""
        sources = _data_layers(net)
        first = self._team.broadcast_object([layer.state() for layer in sources])
        for layer, state in zip(sources, first, strict=True):
            if layer.state() != state:
                layer.set_state(state)
            layer.set_batch_shard(Shard(self._team.rank, self._team.size))
        epoch = Epoch(net) if batches == 0 else None
        if epoch is not None:
            epoch.begin()
        done, ended = 0, False
        request: str | None = None

        def run_round() -> tuple[str | None, dict[int, Batch[Result]], int, bool]:
            """Run this process's batches of a round, and skip those of the other processes.

            Returned are the request to this process, its batches by number, the number of batches
            of all processes after this round, and whether the round contains the last batch.
            """
            results: dict[int, Batch[Result]] = {}
            number, last = done, False
            while not last and number < done + self._team.size:
                if self._has_turn(sources):
                    loss = net.forward()
                    weight = 1 if epoch is None else epoch.last_batch()[0]
                    results[number] = (weight, loss, read(weight))
                else:
                    for layer in sources:
                        layer.skip()
                number += 1
                last = number == batches if epoch is None else epoch.ended
            return self._next_request(), results, number, last

        while self._should_continue(done, request) and not ended:
            start = done
            requests, parts, counts, ends = zip(*self._team.allgather(run_round), strict=True)
            done, ended, request = counts[0], ends[0], first_request(requests)
            results = {number: batch for part in parts for number, batch in part.items()}
            if sorted(results) != list(range(start, done)) or set(counts) != {done}:
                message = (
                    "the processes do not read the same test records; give their data layers the "
                    "same sources"
                )
                raise DataError(message, code=ErrorCode.INCOMPATIBLE)
            for number in range(start, done):
                yield results[number]

    def _has_turn(self, sources: Sequence[PrefetchingDataLayer]) -> bool:
        """Return whether this process runs the next batch of the data layers."""
        turns = {layer.has_turn() for layer in sources}
        if len(turns) != 1:
            message = "data layers of one net are at different batches: " + ", ".join(
                f"{layer.name!r} at record {layer.state()}" for layer in sources
            )
            raise DataError(message, code=ErrorCode.INCOMPATIBLE)
        return turns == {True}


BatchRunner = LocalEvaluator | DistributedEvaluator


def reason_not_shareable(net: Net) -> str:
    """Return why the batches of a net cannot be shared out among processes; "" if they can."""
    for layer in net.layers:
        if reason := _layer_reason(layer):
            return f"layer {layer.name!r} ({layer.type}) {reason}"
    sources = _data_layers(net)
    places = {(layer.batch_size, tuple(layer.state().items())) for layer in sources}
    if len(places) != 1:
        return "its data layers do not read the same records" if sources else "it reads no records"
    return ""


def _layer_reason(layer: Layer) -> str:
    if isinstance(layer, PrefetchingDataLayer):
        return "skips broken records" if layer.skips_bad_records else ""
    if layer.type == "HDF5Output":
        return "writes a file"
    if layer.type == "DetectionOutput":
        folder = layer.param.detection_output_param.save_output_param.output_directory
        return "writes files" if folder else ""
    metadata = layer_metadata(layer.type)
    if layer.type == "Python" or not metadata.known:
        return "may do anything"
    if metadata.records or layer.type == "Input":
        return "has no shards"
    if layer.has_counters or layer.has_state:
        return "keeps state from one batch to the next"
    return "draws random numbers" if layer.random_in_test else ""


def _data_layers(net: Net) -> list[PrefetchingDataLayer]:
    return [layer for layer in net.layers if isinstance(layer, PrefetchingDataLayer)]


# -- means -------------------------------------------------------------------------------------


def evaluate(
    param: SolverParameter, index: int, net: Net, runner: BatchRunner
) -> tuple[dict[str, np.ndarray], float]:
    """Return the mean of every output or its mean average precision, and the mean loss.

    If the runner ends early, the result is meaningless.
    """
    batches = param.test_iter[index]
    if param.eval_type != "detection":
        return _mean_outputs(net, batches, runner)
    per_class = param.show_per_class_result
    return mean_average_precision(net, batches, param.ap_version, runner, per_class=per_class)


def mean_outputs(
    net: Net, batches: int, should_continue: Callable[[], bool] = lambda: True
) -> tuple[dict[str, np.ndarray], float]:
    """Run batches through a net and return the mean of every output, and of the loss.

    Sums stay on the device until the end, in double precision.

    Args:
        net: The net, with data layers.
        batches: Number of batches; 0 is a whole epoch.
        should_continue: Called before each batch; False ends the run with a meaningless result.

    Raises:
        ConfigError: ``batches`` is negative, or a whole epoch is asked of a net that has none.
        ShapeError: An output changes its shape from one batch to another.
    """
    if batches < 0:
        message = f"got {batches} batches, expected a count, or 0 for a whole epoch"
        raise ConfigError(message, code=ErrorCode.OUT_OF_RANGE, field="batches", got=batches)
    return _mean_outputs(net, batches, LocalEvaluator(should_continue))


def _mean_outputs(
    net: Net, batches: int, runner: BatchRunner
) -> tuple[dict[str, np.ndarray], float]:
    """Add outputs up on the net's device or, for several processes, with the same bits on the host.

    Means have the net's dtype.
    """
    backend = net.device.backend
    widest = backend.dtype("float64" if backend.has_float64 else "float32")
    names, sums = list(net.outputs), dict[str, Array]()
    losses, weights = 0.0, 0

    def read(weight: int) -> dict[str, Array]:
        with backend.enter():
            outputs = {
                name: backend.xp.astype(net.blob_by_name(name).read(), widest) * weight
                for name in names  # copies, with any dtype
            }
        if runner.distributed:
            return {name: np.asarray(backend.to_host(part)) for name, part in outputs.items()}
        return outputs

    for weight, loss, outputs in runner.run(net, batches, read):
        losses, weights = losses + weight * loss, weights + weight
        with backend.enter():
            for name in list(names):
                output, total = outputs[name], sums.get(name)
                if total is None or total.shape == output.shape:
                    sums[name] = output if total is None else total + output
                    continue
                message = f"output {name!r} changed from {total.shape} to {output.shape}"
                if batches:
                    details = {"output": name, "expected": total.shape, "got": output.shape}
                    raise ShapeError(message, code=ErrorCode.SHAPE_MISMATCH, **details)
                log.warning("%s between batches, so it has no mean.", message.capitalize())
                names.remove(name)
                del sums[name]
    to_host = np.asarray if runner.distributed else backend.to_host
    weights = weights or 1
    means = {
        name: np.asarray(to_host(total) / weights).astype(net.dtype) for name, total in sums.items()
    }
    return means, losses / weights


# -- mean average precision --------------------------------------------------------------------


def eleven_points(precision: np.ndarray, recall: np.ndarray) -> float:
    """Return the mean of the best precisions at or above eleven recalls (VOC 2007)."""
    best = [precision[recall >= point / 10].max(initial=0) for point in range(11)]
    return float(np.mean(best))


def max_integral(precision: np.ndarray, recall: np.ndarray) -> float:
    """Return the integral of the best precision at or above each recall (VOC 2012)."""
    best = np.maximum.accumulate(precision[::-1])[::-1]
    before = np.concatenate([best[:1], best[:-1]])  # as in SSD: from the recall before
    return float((before * np.diff(recall, prepend=0)).sum())


def integral(precision: np.ndarray, recall: np.ndarray) -> float:
    """Return the integral of precision over recall."""
    return float((precision * np.diff(recall, prepend=0)).sum())


AP_VERSIONS = {"11point": eleven_points, "MaxIntegral": max_integral, "Integral": integral}
"""Function of precisions and recalls by ``ap_version``."""


def average_precision(
    scores: np.ndarray, correct: np.ndarray, objects: int, version: str = "Integral"
) -> float:
    """Return the average precision of the detections of one class; 0 without detections or objects.

    ``scores`` has shape (K,), ``correct`` (K,) of bool; ``objects`` is the number of ground-truth
    objects, ``version`` one of ``AP_VERSIONS``.
    """
    if not len(scores) or not objects:
        return 0.0
    hits = correct[np.argsort(-scores, kind="stable")].cumsum()
    precision, recall = hits / np.arange(1, len(hits) + 1), hits / objects
    return AP_VERSIONS[version](precision, recall)


@dataclass
class DetectionCounts:
    """Sum of the outputs of DetectionEvaluate, for the average precision of each class."""

    objects: dict[int, int] = field(default_factory=dict)  # ground-truth objects of each class
    rows: list[np.ndarray] = field(default_factory=list)  # class, score and correctness

    def add(self, output: np.ndarray) -> None:
        """Add one batch. Shape: (M, 5)."""
        counts = output[:, 0] == -1
        for _, kind, count, *_ in output[counts]:
            self.objects[int(kind)] = self.objects.get(int(kind), 0) + int(count)
        detections = output[~counts]
        counted = (detections[:, 3] != 0) | (detections[:, 4] != 0)
        self.rows.append(detections[counted][:, 1:4])

    def precisions(self, version: str) -> dict[int, float]:
        """Return the average precision of each class."""
        rows = np.concatenate(self.rows)
        by_class = {kind: rows[rows[:, 0] == kind] for kind in sorted(self.objects)}
        for kind, own in by_class.items():
            if not len(own):
                log.warning("No object of class %d was detected.", kind)
        return {
            kind: average_precision(own[:, 1], own[:, 2] == 1, self.objects[kind], version)
            for kind, own in by_class.items()
        }


def mean_average_precision(
    net: Net, batches: int, version: str, runner: BatchRunner, *, per_class: bool = False
) -> tuple[dict[str, np.ndarray], float]:
    """Return the mean average precision of every output, and the mean loss, of a run of batches.

    ``version`` is one of ``AP_VERSIONS``. With ``per_class`` the precision of each class is logged.
    Another output than that of DetectionEvaluate raises a ConfigError.
    """
    layers = [at for at in net.structure.bindings() if at.layer.type == "DetectionEvaluate"]
    evaluated = {blob.name for at in layers for blob in at.top}
    others = [name for name in net.outputs if name not in evaluated]
    if others or not net.outputs:
        got = f"outputs {', '.join(others)} of other layers" if others else "no output"
        message = (
            f'eval_type: "detection" got {got} of a test net, expected outputs of '
            "DetectionEvaluate layers alone"
        )
        raise ConfigError(message, code=ErrorCode.INVALID, field="eval_type", outputs=others)
    counts = {name: DetectionCounts() for name in net.outputs}
    losses, weights = 0.0, 0

    def read(_: int) -> dict[str, np.ndarray]:
        return {name: net.blob_by_name(name).cpu_data()[0, 0].astype(np.float64) for name in counts}

    for weight, loss, outputs in runner.run(net, batches, read):
        losses, weights = losses + weight * loss, weights + weight
        for name, count in counts.items():
            count.add(outputs[name])
    means = {}
    for name, count in counts.items():
        precisions = count.precisions(version) if count.rows else {}
        if per_class:
            for kind, precision in precisions.items():
                log.info("class%d: %g", kind, precision)
        mean = sum(precisions.values()) / max(len(precisions), 1)
        means[name] = np.array(mean, net.dtype)
    return means, losses / (weights or 1)


# -- the tests of a solver ---------------------------------------------------------------------


class Evaluator:
    """Tests the nets of a run with the present weights, and follows requests between batches."""

    def __init__(
        self,
        run: TrainingContext,
        requests: Requests,
        write_snapshot: Callable[[], None],
        on_batch: OnBatch,
    ) -> None:
        self._run, self._requests = run, requests
        self._write_snapshot, self._on_batch = write_snapshot, on_batch
        self._stopped = False
        self._root_only = set()  # test nets whose batches rank 0 runs alone
        for index, net in enumerate(run.test_nets if run.team.size > 1 else ()):
            if reason := reason_not_shareable(net):
                self._root_only.add(index)
                if run.is_root:
                    log.info("Test net #%d is tested by process 0 alone: %s.", index, reason)

    def test(self, index: int, iteration: int) -> dict[str, np.ndarray] | None:
        """Test a net and log the result; return the means, or None if a request ended the test."""
        run, team = self._run, self._run.team
        if not 0 <= index < len(run.test_nets):
            message = f"got test net {index}, and this solver has {len(run.test_nets)} test nets"
            count = len(run.test_nets)
            raise ConfigError(message, code=ErrorCode.OUT_OF_RANGE, got=index, test_nets=count)
        if index >= len(run.param.test_iter) or run.param.test_iter[index] < 0:
            got = run.param.test_iter[index : index + 1] or "no entry"
            message = f"got {got} of test_iter for test net {index}, expected at least 0"
            raise ConfigError(message, code=ErrorCode.INVALID, field="test_iter", net=index)
        if run.is_root:
            log.info("Iteration %d, Testing net (#%d)", iteration, index)
        net = run.test_nets[index]
        if net.device is not run.net.device:  # the training net may have moved
            net.to(run.net.device)
        net.share_trained_layers_with(run.net)
        self._stopped = False
        runner = self._runner(index)
        if runner.distributed or team.size == 1 or run.is_root:
            means, loss = evaluate(run.param, index, net, runner)
        else:
            means, loss = {}, 0.0
        if team.size > 1 and not runner.distributed:
            factor = run.param.test_iter[index] or 1
            own = (means, loss, self._stopped)
            means, loss, self._stopped = team.broadcast_object(own, timeout_factor=factor)
        if self._stopped:
            log.info("Test interrupted.")
            return None
        if run.is_root:
            shown = loss if run.param.test_compute_loss else None
            run.report.log_test(net, index, iteration, means, shown)
        return means

    def _runner(self, index: int) -> BatchRunner:
        def call_on_batch(done: int) -> None:
            self._on_batch(index, done, self._run.param.test_iter[index])

        def after_round(done: int, request: str | None) -> bool:
            call_on_batch(done)
            return self._follow(request)

        def before_batch() -> bool:
            call_on_batch(next(batches))
            while request := self._requests.next():
                self._follow(request)
            return not self._stopped

        if self._run.team.size > 1 and index not in self._root_only:
            return DistributedEvaluator(self._run.team, self._requests.next, after_round)
        batches = itertools.count()
        return LocalEvaluator(before_batch)

    def _follow(self, request: str | None) -> bool:
        """Follow a request during a test; return whether the test continues."""
        if request == "snapshot" and self._run.is_root:
            self._write_snapshot()
        self._stopped |= request == "stop"
        return not self._stopped
