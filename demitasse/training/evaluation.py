"""Evaluation of test nets: batches or whole epochs, by one process or several.

The mean of each output is computed over ``test_iter`` batches, or over every record exactly once
with ``test_iter: 0``.

Source: Caffe, ``Solver::Test`` in ``src/caffe/solver.cpp``; whole epochs are Demitasse's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

import numpy as np

from demitasse.backends.arrays import Array
from demitasse.core.log import get_logger
from demitasse.errors import ConfigError, DataError, ErrorCode, ShapeError
from demitasse.io.data.sources.source import BatchShard
from demitasse.io.proto import SolverParameter
from demitasse.layers import Layer
from demitasse.layers.data_layers.base import EpochDataLayer, PrefetchingDataLayer
from demitasse.layers.metadata import layer_metadata
from demitasse.net import Net
from demitasse.training.average_precision import mean_average_precision
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

    Args:
        net: The net.

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
        """Run the net over its records, from the first on.

        Yields:
            After each forward pass, the number of its records, and the loss.

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
        """Return the number of records of the last batch, and whether it ended the epoch.

        Raises:
            ConfigError: Data layers of the net have read unequal numbers of records.
        """
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


def run_batches(
    net: Net, batches: int, should_continue: Callable[[], bool]
) -> Iterator[tuple[int, float]]:
    """Run batches through a net.

    Args:
        net: The net, with data layers.
        batches: Number of batches. 0 is a whole epoch: every record once, and the weight of a batch
            is the number of its records.
        should_continue: Called before each batch, and after the last; False ends the run.

    Yields:
        After each forward pass, its weight and the loss.

    Raises:
        ConfigError: A whole epoch is asked of a net that has none.
    """
    runs = Epoch(net).batches() if batches == 0 else ((1, net.forward()) for _ in range(batches))
    while should_continue():
        batch = next(runs, None)
        if batch is None:
            return
        yield batch


class BatchRunner(Protocol):
    """Runs the batches of a test.

    Attributes:
        distributed: Whether several processes run them, so that results travel.
    """

    distributed: bool

    def run(self, net: Net, batches: int, read: Callable[[int], Result]) -> Iterator[Batch[Result]]:
        """Run batches, in their order.

        Args:
            net: The net, with data layers.
            batches: Number of batches; 0 is a whole epoch.
            read: Called after each batch with its weight; reads a result from the net.

        Yields:
            For each batch its weight, its loss and its result.

        Raises:
            ConfigError: A whole epoch is asked of a net that has none.
        """


class LocalEvaluator:
    """Runs all batches in this process.

    Args:
        should_continue: Called before each batch, and after the last; False ends the test.
    """

    distributed = False

    def __init__(self, should_continue: Callable[[], bool] = lambda: True) -> None:
        self._should_continue = should_continue

    def run(self, net: Net, batches: int, read: Callable[[int], Result]) -> Iterator[Batch[Result]]:
        """Run batches one after the other."""
        for weight, loss in run_batches(net, batches, self._should_continue):
            yield weight, loss, read(weight)


@dataclass(frozen=True)
class _Round(Generic[Result]):
    """Work of one process in a round of as many batches as there are processes.

    Attributes:
        request: Request to this process: to stop, to write a snapshot, or None.
        batches: Results of this process by the number of the batch.
        done: Number of batches of all processes, after this round.
        ended: Whether the round contains the last batch.
    """

    request: str | None
    batches: dict[int, Batch[Result]]
    done: int
    ended: bool


class DistributedEvaluator:
    """Shares out batches among all processes of a run.

    In each round every process runs one batch. Results are gathered after the round, and come in
    the order of the batches: their sums have the bits of a single process.

    Args:
        team: The processes.
        next_request: Returns the next request to this process; the processes agree on one.
        should_continue: Called with the number of batches done and the request of any process,
            before the first batch and after each round; False ends the test.
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
        """Run batches, as many at a time as there are processes."""
        sources = _data_layers(net)
        first = self._team.broadcast_object([layer.state() for layer in sources])
        for layer, state in zip(sources, first, strict=True):
            if layer.state() != state:
                layer.set_state(state)
            layer.set_batch_shard(BatchShard(self._team.rank, self._team.size))
        epoch = Epoch(net) if batches == 0 else None
        if epoch is not None:
            epoch.begin()
        done, ended = 0, False
        request: str | None = None
        while self._should_continue(done, request) and not ended:
            start = done
            work = partial(self._round, net, sources, start, batches, epoch, read)
            rounds = self._team.allgather(work)
            done, ended = rounds[0].done, rounds[0].ended
            request = first_request(own.request for own in rounds)
            results = {number: batch for own in rounds for number, batch in own.batches.items()}
            if sorted(results) != list(range(start, done)) or {r.done for r in rounds} != {done}:
                message = (
                    "the processes do not read the same test records; give their data layers the "
                    "same sources"
                )
                raise DataError(message, code=ErrorCode.INCOMPATIBLE)
            for number in range(start, done):
                yield results[number]

    def _round(
        self,
        net: Net,
        sources: list[PrefetchingDataLayer],
        done: int,
        batches: int,
        epoch: Epoch | None,
        read: Callable[[int], Result],
    ) -> _Round[Result]:
        """Run this process's batches of a round, and skip those of the other processes."""
        results: dict[int, Batch[Result]] = {}
        ended, start = False, done
        while not ended and done < start + self._team.size:
            turns = {layer.has_turn() for layer in sources}
            if len(turns) != 1:
                message = "data layers of one net are at different batches: " + ", ".join(
                    f"{layer.name!r} at record {layer.state()}" for layer in sources
                )
                raise DataError(message, code=ErrorCode.INCOMPATIBLE)
            if turns == {True}:
                loss = net.forward()
                weight = 1 if epoch is None else epoch.last_batch()[0]
                results[done] = (weight, loss, read(weight))
            else:
                for layer in sources:
                    layer.skip()
            done += 1
            ended = done == batches if epoch is None else epoch.ended
        return _Round(self._next_request(), results, done, ended)


def reason_not_shareable(net: Net) -> str:
    """Return why the batches of a net cannot be shared out among processes; "" if they can."""
    for layer in net.layers:
        reason = _layer_reason(layer)
        if reason:
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
    """Test a net by its ``eval_type``.

    Args:
        param: The solver's fields.
        index: Index of the test net.
        net: The test net.
        runner: Runs the batches. If it ends early, the result is meaningless.

    Returns:
        The mean of every output, or its mean average precision; and the mean loss.
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
        ConfigError: A whole epoch is asked of a net that has none.
        ShapeError: An output changes its shape from one batch to another.
    """
    return _mean_outputs(net, batches, LocalEvaluator(should_continue))


def _mean_outputs(
    net: Net, batches: int, runner: BatchRunner
) -> tuple[dict[str, np.ndarray], float]:
    sums = _WeightedSums(net, whole_epoch=batches == 0, on_host=runner.distributed)
    for weight, loss, outputs in runner.run(net, batches, sums.read_outputs):
        sums.add(weight, loss, outputs)
    return sums.means()


class _WeightedSums:
    """Weighted sums of a net's outputs, on its device or, with the same bits, on the host."""

    def __init__(self, net: Net, *, whole_epoch: bool, on_host: bool) -> None:
        self._net, self._whole_epoch, self._on_host = net, whole_epoch, on_host
        self._sums: dict[str, Array] = {}
        self._outputs = list(net.outputs)
        self._loss, self._weight = 0.0, 0

    def read_outputs(self, weight: int) -> dict[str, Array]:
        """Return the present outputs of the net times a weight."""
        backend = self._net.device.backend
        widest = backend.dtype("float64" if backend.has_float64 else "float32")
        with backend.enter():
            outputs = {
                name: backend.xp.astype(self._net.blob_by_name(name).read(), widest) * weight
                for name in self._outputs  # copies, with any dtype
            }
        if self._on_host:
            return {name: np.asarray(backend.to_host(part)) for name, part in outputs.items()}
        return outputs

    def add(self, weight: int, loss: float, outputs: Mapping[str, Array]) -> None:
        """Add the outputs of a batch."""
        self._loss += weight * loss
        self._weight += weight
        with self._net.device.backend.enter():
            for name in list(self._outputs):
                output, total = outputs[name], self._sums.get(name)
                if total is None:
                    self._sums[name] = output
                elif total.shape == output.shape:
                    self._sums[name] = total + output
                else:
                    self._drop(name, total.shape, output.shape)

    def _drop(self, name: str, before: tuple[int, ...], now: tuple[int, ...]) -> None:
        """Drop an output without a mean from an epoch; raise an error for a number of batches."""
        message = f"output {name!r} changed from {before} to {now} between batches"
        if not self._whole_epoch:
            raise ShapeError(
                message, code=ErrorCode.SHAPE_MISMATCH, output=name, expected=before, got=now
            )
        log.warning("%s, so it has no mean.", message.capitalize())
        self._outputs.remove(name)
        del self._sums[name]

    def means(self) -> tuple[dict[str, np.ndarray], float]:
        """Return the mean of each output, in the net's dtype, and of the loss."""
        weight = self._weight or 1
        to_host = np.asarray if self._on_host else self._net.device.backend.to_host
        means = {
            name: np.asarray(to_host(total) / weight).astype(self._net.dtype)
            for name, total in self._sums.items()
        }
        return means, self._loss / weight


# -- the tests of a solver ---------------------------------------------------------------------


class Evaluator:
    """Tests the nets of a run with the present weights.

    Args:
        run: The run.
        requests: Requests to the solver, which are followed between batches.
        write_snapshot: Writes a snapshot on request.
        on_batch: Called before each batch and after the last.
    """

    def __init__(
        self,
        run: TrainingContext,
        requests: Requests,
        write_snapshot: Callable[[], None],
        on_batch: Sequence[OnBatch],
    ) -> None:
        self._run, self._requests = run, requests
        self._write_snapshot, self._on_batch = write_snapshot, on_batch
        self._stopped = False
        self._root_only = self._find_root_only()

    def test(self, index: int, iteration: int) -> dict[str, np.ndarray] | None:
        """Test a net and log the result; see ``Solver.test``.

        Returns:
            The mean of every output; None if a request ended the test.

        Raises:
            ConfigError: There is no such net.
        """
        run, team = self._run, self._run.team
        if not 0 <= index < len(run.test_nets):
            message = f"got test net {index}, and this solver has {len(run.test_nets)} test nets"
            count = len(run.test_nets)
            raise ConfigError(message, code=ErrorCode.OUT_OF_RANGE, got=index, test_nets=count)
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

    def _find_root_only(self) -> set[int]:
        """Return the test nets whose batches rank 0 runs alone, and log the reasons."""
        root_only = set()
        for index, net in enumerate(self._run.test_nets if self._run.team.size > 1 else ()):
            reason = reason_not_shareable(net)
            if reason:
                root_only.add(index)
                if self._run.is_root:
                    log.info("Test net #%d is tested by process 0 alone: %s.", index, reason)
        return root_only

    def _runner(self, index: int) -> BatchRunner:
        if self._run.team.size > 1 and index not in self._root_only:

            def after_round(done: int, request: str | None) -> bool:
                self._call_on_batch(index, done)
                return self._follow(request)

            return DistributedEvaluator(self._run.team, self._requests.next, after_round)
        batches = itertools.count()

        def before_batch() -> bool:
            self._call_on_batch(index, next(batches))
            while request := self._requests.next():
                self._follow(request)
            return not self._stopped

        return LocalEvaluator(before_batch)

    def _call_on_batch(self, index: int, done: int) -> None:
        for callback in self._on_batch:
            callback(index, done, self._run.param.test_iter[index])

    def _follow(self, request: str | None) -> bool:
        """Follow a request during a test; return whether the test continues."""
        if request == "snapshot" and self._run.is_root:
            self._write_snapshot()
        self._stopped |= request == "stop"
        return not self._stopped
