"""Solver: trains a net, tests it, and writes snapshots.

Source: Caffe, ``src/caffe/solver.cpp``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np

from demitasse.core import guesses
from demitasse.core.config import settings
from demitasse.core.deprecated import deprecated_attribute, renamed_arguments
from demitasse.core.device import Device
from demitasse.core.guesses import attribute_error
from demitasse.core.log import get_logger
from demitasse.core.text import html_of
from demitasse.errors import ConfigError, ErrorCode
from demitasse.io.data.sources.source import Shard
from demitasse.io.proto import SolverParameter
from demitasse.io.weights.load import OnMismatch
from demitasse.net.rollback import nothing
from demitasse.plan.liveness import Keep
from demitasse.training.checkpoint.checkpointer import Checkpointer, TrainingState
from demitasse.training.checkpoint.resume_check import process_settings
from demitasse.training.checkpoint.snapshot import check_folder, check_names, check_prefix
from demitasse.training.context import Request, Requests, TrainingContext
from demitasse.training.distributed import (
    AllReduce,
    Communicator,
    LocalCommunicator,
    Shards,
    check_settings,
    make_worker_group,
)
from demitasse.training.evaluation import Evaluator, OnBatch
from demitasse.training.loop import TrainingLoop
from demitasse.training.lr_policies import learning_rate
from demitasse.training.monitor import EarlyStopping, MetricMonitor
from demitasse.training.nets import make_nets
from demitasse.training.nonfinite import NonfiniteCheck, OnNonfinite
from demitasse.training.report import TrainReport, run_metadata
from demitasse.training.solver_param import (
    check_fields,
    check_options,
    is_due,
    locate_fields,
    read_fields,
)
from demitasse.training.tracking import Logger, LoggerGroup
from demitasse.training.update_rules import find_rule
from demitasse.training.updater import History, Updater

log = get_logger(__name__)


class Solver:
    """Trains a net.

    Subclasses may override ``apply_update``, ``test_all``, ``test`` and ``snapshot``, which
    ``step`` and ``solve`` call.

    Args:
        source: A solver's prototxt file, its text, or message.
        type: "SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam", "AdamW", "LARS" or
            "LAMB"; None uses the type of ``source``.
        device: Device of the nets; None uses the configuration.
        dtype: "float32" or "float64"; on a GPU also "bfloat16" or "float16": the nets store values
            in 16 bits, and weights and their gradients in float32. None of this has run on a GPU.
        optimize: Whether backends may lower operations; None uses the setting ``optimize``.
        seed: Key of all random numbers; None uses ``random_seed``, then the configuration.
        base_dir: Folder to search for named files besides the working directory; by default the
            folder of ``source``.
        on_nonfinite: If the loss is NaN or infinite, "warn" once, or "raise" before the weights
            change. If weights to be written are, "warn" and write them, or "raise".
        on_mismatch: "raise" an error for layers in ``weights`` that do not fit, or "skip" them.
        keep_last: Number of snapshots to keep; older ones of this run are deleted, also after the
            run has resumed. None keeps all.
        keep_best: An output of a test net, e.g. "accuracy". Whenever a test improves it, the
            weights are written as ``<snapshot_prefix>_best.caffemodel``. Outputs that are neither
            accuracies nor losses need "name:max" or "name:min".
        early_stopping: Condition to end training before ``max_iter``, or None.
        keep_blobs: Names of blobs of the training net whose gradients are kept, as in ``Net``.
        ignore_unknown_fields: Skip unknown fields of solver and nets with a warning.
        rank: Number of this solver among ``world_size`` data-parallel solvers whose gradients the
            caller adds up in ``on_gradients_ready``. Only rank 0 tests and writes snapshots.
        world_size: Number of those solvers.
        num_shards: Number of shards of the data, each with the net's batch size: the joined batch
            is ``num_shards`` times as large. The same for the whole life of a run, while the number
            of processes may change. None: one shard for each process.
        communicator: The processes that train together, e.g. ``Mpi()``; None for this process
            alone. They share out the batches of tests; only rank 0 writes snapshots.
        allreduce: How gradients are summed: "deterministic" gives the same bits for any number of
            processes, "fast" uses the order of MPI or NCCL, "fp16" sends half precision. None:
            "fast" between GPUs that NCCL connects, else "deterministic".
        overlap: Whether gradients are exchanged while backward computes those of earlier layers.

    Attributes:
        param: The solver's fields; changes count from the next iteration on.
        net: The training net.
        test_nets: The nets to test with; they share the weights of ``net``.
        iter: Number of updates made so far.
        lr: Learning rate of the last update; NaN before the first.
        current_step: Steps of the ``multistep`` policy.
        stopped: Whether a request ended the last run, or a test after it.
        early_stopped: Whether ``early_stopping`` ended it.
        on_start: Called before the passes of each iteration.
        on_gradients_ready: Called after the passes, before the update.
        on_test_batch: Called before each batch of a test (each n batches of n processes) and after
            the last, with index of the net, batches done, and of all batches; 0 for an epoch.
        on_test: Called after each test with the index of the net and the means of its outputs; in
            the first of several processes.
        on_snapshot: Called after each snapshot with its weights file and its state file.
        loggers: Receive loss, learning rate and speed whenever they are displayed, results of
            tests, and snapshots, e.g. ``demitasse.training.tracking.JsonLines(path)``. Only rank 0
            logs. A logger that fails does not end the run. ``close`` closes the loggers.

    Raises:
        ConfigError: The type is unknown, or a field is missing or has an invalid value.
        SnapshotError: Snapshots cannot be written to their folder.
        DemitasseError: A net cannot be made.
    """

    @renamed_arguments(
        ranks="world_size", shards="num_shards", processes="communicator", reduce="allreduce",
        lenient="ignore_unknown_fields", lowered="optimize", keep="keep_blobs",
    )  # fmt: skip
    def __init__(
        self,
        source: str | os.PathLike[str] | SolverParameter,
        *,
        type: str | None = None,
        device: str | Device | None = None,
        dtype: str = "float32",
        optimize: bool | None = None,
        seed: int | None = None,
        base_dir: str | os.PathLike[str] | None = None,
        on_nonfinite: OnNonfinite = "warn",
        on_mismatch: OnMismatch = "raise",
        keep_last: int | None = None,
        keep_best: str | None = None,
        early_stopping: EarlyStopping | None = None,
        keep_blobs: Keep = None,
        ignore_unknown_fields: bool = False,
        rank: int = 0,
        world_size: int = 1,
        num_shards: int | None = None,
        communicator: Communicator | None = None,
        allreduce: AllReduce | None = None,
        overlap: bool = False,
    ) -> None:
        self.param, file = read_fields(source, type, ignore_unknown_fields)
        rule = find_rule(self.param.type)
        with locate_fields(file):
            check_fields(self.param, rule)
        check_options(self.param, keep_last, early_stopping, Shard(rank, world_size))
        communicator = LocalCommunicator() if communicator is None else communicator
        size = communicator.size
        shards = Shards(size if num_shards is None else num_shards, communicator.rank, size)
        if shards.count > 1:
            if world_size > 1:
                message = (
                    f"got {shards.count} shards and world_size {world_size}; give num_shards and "
                    "communicator, or rank and world_size"
                )
                raise ConfigError(message, code=ErrorCode.CONFLICT, world_size=world_size)
            rank, world_size = shards.rank, shards.count
        if rank == 0:
            check_prefix(self.param, best=keep_best is not None)
        if seed is None and self.param.random_seed >= 0:
            seed = self.param.random_seed
        asked_seed = settings.get("seed") if seed is None else seed
        if size > 1:  # all shards share the order of the records
            drawn = int.from_bytes(os.urandom(4), "little") >> 1
            seed = communicator.broadcast_object(drawn if asked_seed < 0 else asked_seed)
        base = file.parent if base_dir is None and file is not None else base_dir
        base = None if base is None else Path(base)
        options: dict[str, Any] = {
            "device": device, "dtype": dtype, "optimize": optimize, "rank": rank,
            "world_size": world_size, "ignore_unknown_fields": ignore_unknown_fields,
        }  # fmt: skip
        self.net, self.test_nets = make_nets(
            self.param, base, options, seed=seed, keep=keep_blobs, on_mismatch=on_mismatch
        )
        if size > 1:
            own = process_settings(self.param, (self.net, *self.test_nets)) | {
                "num_shards": str(shards.count), "allreduce": str(allreduce), "dtype": dtype,
                "overlap": str(overlap), "on_nonfinite": on_nonfinite,
                "early_stopping": str(early_stopping),
            }  # fmt: skip
            check_settings(communicator, own)
        self.iter = self.current_step = 0
        self.lr = math.nan
        self.stopped = self.early_stopped = False
        self.on_start: list[Callable[[], None]] = []
        self.on_gradients_ready: list[Callable[[], None]] = []
        self.on_test_batch: list[OnBatch] = []
        self.on_test: list[Callable[[int, dict[str, np.ndarray]], None]] = []
        self.on_snapshot: list[Callable[[Path, Path], None]] = []
        self.loggers: list[Logger] = []
        loggers = LoggerGroup(
            lambda: self.loggers if rank == 0 else (),
            lambda: run_metadata(self.param, self.net, world_size),
        )
        self._run = TrainingContext(
            self.param, self.net, self.test_nets, Updater(self.net, rule),
            TrainReport(self.param.average_loss, loggers, self.param.iter_size * world_size),
            MetricMonitor(self.param, self.test_nets, keep_best, early_stopping),
            NonfiniteCheck(on_nonfinite),
            make_worker_group(self.net, communicator, shards, allreduce, overlap=overlap), rank,
            world_size,
        )  # fmt: skip
        for net in self._run.team.nets:
            net.execution.passes.loss_scale = self._run.updater.loss_scale
        self._requests = Requests()
        self._checkpointer = Checkpointer(self._run, keep_last, asked_seed)
        custom = self.__class__.apply_update is not Solver.apply_update
        self._loop = TrainingLoop(self, self._run, self._checkpointer, self._requests, custom)
        snapshot = self._loop.write_test_snapshot
        self._evaluator = Evaluator(self._run, self._requests, snapshot, self._call_on_test_batch)
        log.info("Solver scaffolding done.")

    @property
    def type(self) -> str:
        """Name of the update rule: "SGD", "Adam", ..."""
        return self._run.updater.rule.type

    # -- training ------------------------------------------------------------------------------

    def step(self, iterations: int = 1) -> float:
        """Make so many updates, with tests, display and snapshots as the fields say.

        Returned is ``smoothed_loss``: the loss, or its mean over ``average_loss`` iterations.

        Raises:
            NetError: Another thread uses the net.
            SnapshotError: The last snapshot could not be written, and still cannot be; or the best
                weights could not.
        """
        with self.net.lock:  # between passes, too: gradients and history belong to a step
            self._loop.run(iterations)
            if self._checkpointer.snapshot_pending:
                self.snapshot()
        self._checkpointer.check_best()
        return self.smoothed_loss

    def fit(
        self,
        data: Any,
        labels: Any = None,
        *,
        epochs: int = 1,
        batch_size: int | None = None,
        shuffle: bool = True,
    ) -> float:
        """Update once for each batch of data, which fills the inputs; return ``smoothed_loss``.

        A request to stop, or ``early_stopping``, ends it as it ends ``step``.

        Args:
            data: An array of items, or a dict of arrays by the names of the inputs; or an iterable
                of batches, such as a DataLoader of PyTorch. A batch is an array, a dict, or a tuple
                in the order of ``net.inputs``.
            labels: An array for the second input, if ``data`` is an array.
            epochs: Number of passes over ``data``; an iterator has one.
            batch_size: Items of a batch of arrays; None for the size that the net declares.
            shuffle: Whether arrays are shuffled in each epoch, by the seed of the net.

        Raises:
            NetError: The net has no inputs, or others than the batches.
            ConfigError: ``iter_size`` is not 1, or an argument is out of range.
        """
        from demitasse.training.batches import batches

        for batch in batches(self, data, labels, epochs, batch_size, shuffle=shuffle):
            for name, array in batch.items():
                self.net.set_input(name, array)
            self.step(1)
            if self.stopped or self.early_stopped:
                break
        return self.smoothed_loss

    def solve(self, resume: str | os.PathLike[str] | None = None) -> None:
        """Train to ``max_iter``, write a last snapshot, display the last loss and test once more.

        Args:
            resume: A state to resume from.

        Raises:
            ConfigError: ``max_iter`` is missing.
            SnapshotError: The last snapshot, or the best weights, could not be written. A folder
                that is not writable raises before training; failures on the way are only logged.
        """
        if not self.param.HasField("max_iter"):
            message = "max_iter is missing; give the number of iterations, or call step"
            raise ConfigError(message, code=ErrorCode.MISSING, field="max_iter")
        if self.param.snapshot_after_train:
            check_names(self._run)
        if self.param.snapshot_after_train and self._run.is_root:
            check_folder(self.param.snapshot_prefix)
            self._checkpointer.lock_prefix()
        try:
            self._solve(resume)
        finally:
            self._checkpointer.close()

    def _solve(self, resume: str | os.PathLike[str] | None) -> None:
        log.info("Solving %s", self.net.name)
        log.info("Learning Rate Policy: %s", self.param.lr_policy)
        if resume is not None:
            log.info("Restoring previous solver status from %s", os.fspath(resume))
            self.restore(resume)
        with self.net.lock:
            self._loop.run(self.param.max_iter - self.iter)
        last = self.param.snapshot_after_train and not is_due(self.param.snapshot, self.iter)
        if last or self._checkpointer.snapshot_pending:
            if last:
                self._checkpointer.resumable.gather()
            if self._run.is_root:
                self.snapshot()
            else:
                self._checkpointer.check_finite(self.iter)
        if self.stopped:
            log.info("Optimization stopped early.")
            return
        if not self.early_stopped:
            self._loop.finish()
        log.info("Optimization Done.")
        self._checkpointer.check_best()

    def apply_update(self) -> None:
        """Change the weights by the gradients of the net, and count the iteration.

        Raises:
            NetError: The net's last backward pass did not complete.
            SnapshotError: An earlier update did not complete.
        """
        self._loop.update()

    @property
    def next_lr(self) -> float:
        """Learning rate of the present iteration, for the next update.

        Policy ``plateau`` may still take a step before that update.

        Raises:
            ConfigError: The policy lacks a field, or has ended.
        """
        return learning_rate(self.param, self.iter, self.current_step)[0]

    @property
    def smoothed_loss(self) -> float:
        """Mean loss of the last ``average_loss`` iterations, of earlier runs too; NaN before."""
        return self._run.report.smoothed_loss

    @property
    def history(self) -> History:
        """History arrays of each parameter."""
        return self._run.updater.history

    @property
    def loss_scale(self) -> float | None:
        """Factor of the gradients of a net that stores values in float16; None for other nets.

        It may be set. It is halved, without an update, if gradients are not finite, and doubled
        after 2000 updates.
        """
        state = self._run.updater.loss_scale
        return None if state is None else float(state.cpu_data()[0])

    @loss_scale.setter
    def loss_scale(self, value: float) -> None:
        self._run.updater.set_loss_scale((value, 0))

    # -- testing -------------------------------------------------------------------------------

    def test_all(self) -> list[dict[str, np.ndarray]]:
        """Test with every test net; return the mean of every output for each completed test.

        All processes of a run call this. Of ``world_size`` solvers only rank 0 tests.
        """
        results: list[dict[str, np.ndarray]] = []
        if self._run.team.is_single and not self._run.is_root:
            return results
        self.stopped = False
        with self._checkpointer.resumable.repeatable_test(lambda: self.stopped):
            for index in range(len(self.test_nets)):
                if not self.stopped:
                    results.append(self.test(index))
        return results

    def test(self, index: int = 0) -> dict[str, np.ndarray]:
        """Run ``test_iter`` batches through a test net with the present weights.

        With ``test_iter: 0`` the test is one epoch: every record once. All processes of a run call
        this: they share out the batches, or rank 0 runs all batches if the net needs that.

        Returns:
            The mean of every output over the batches, or its mean average precision with
            ``eval_type: "detection"``; empty if the test was interrupted.

        Raises:
            ConfigError: There is no such test net.
        """
        self._checkpointer.check_consistent(self.iter)
        means = self._evaluator.test(index, self.iter)
        self.stopped = means is None
        if means is None:
            return {}
        for callback in [*self.on_test] if self._run.is_root else ():
            callback(index, means)
        return means

    def _call_on_test_batch(self, index: int, done: int, batches: int) -> None:
        for callback in [*self.on_test_batch]:
            callback(index, done, batches)

    # -- loggers -------------------------------------------------------------------------------

    def log_event(self, kind: str, facts: Mapping[str, object]) -> None:
        """Send an event of the present iteration, with values of JSON's types, to every logger."""
        self._run.report.loggers.event(self.iter, kind, facts)

    def log_scalars(self, values: Mapping[str, float]) -> None:
        """Send numbers of the present iteration, by name, to every logger."""
        self._run.report.loggers.scalars(self.iter, values)

    # -- requests ------------------------------------------------------------------------------

    def request(self, action: Request | None) -> None:
        """Request an action from a running solver, between iterations; safe in signal handlers.

        Equal requests count once. All ranks may get a request for a snapshot: rank 0 writes it.

        Args:
            action: "stop", "snapshot", or None to cancel all pending requests.
        """
        self._requests.add(action)

    @property
    def pending_requests(self) -> list[Request]:
        """Requests that may not have been followed."""
        pending = self._requests.pending
        return [*pending, "stop"] if self.stopped else pending

    # -- snapshots -----------------------------------------------------------------------------

    def snapshot(self, prefix: str | os.PathLike[str] | None = None) -> tuple[Path, Path]:
        """Write the weights and the state as ``<prefix>_iter_<N>...``; return both files.

        The prefix is ``snapshot_prefix`` by default.

        Raises:
            SnapshotError: The files cannot be written, and old files stay complete; or this is
                another rank than 0.
            NetError: Weights are NaN or infinite, and ``on_nonfinite`` is "raise".
        """
        paths = self._checkpointer.write(self.iter, self.current_step, prefix)
        weights, state = map(str, paths)
        self.log_event("snapshot", {"weights": weights, "state": state})
        for callback in [*self.on_snapshot]:
            callback(*paths)
        return paths

    def restore(
        self, path: str | os.PathLike[str], *, force: bool = False, exact: bool = False
    ) -> None:
        """Restore a state that Demitasse or Caffe wrote, with the weights that it names.

        A run that resumes from Demitasse's own state has the bits of an uninterrupted run. If data,
        fields, threads or other conditions have changed, a warning lists the differences. A state
        without data positions starts at the first record.

        Args:
            path: The state.
            force: Accept weights, parameters and a type of solver of another run.
            exact: Refuse all differences that change results.

        Raises:
            ConfigError: Both ``force`` and ``exact`` are given.
            SnapshotError: The state cannot be read or does not fit; nothing has changed.
            WeightsError: Its weights cannot be read; nothing has changed.
            ShapeError: Its weights do not fit; nothing has changed.
        """
        with self.net.lock:
            state = self._checkpointer.restore(Path(path), force=force, exact=exact)
            self._set_position(state.iter, state.current_step)

    def state_dict(self) -> TrainingState:
        """Return the state of the run between two iterations, for another solver of the run.

        Everything after the last update, such as a last test, is undone, and will be repeated.

        Raises:
            SnapshotError: An update was interrupted.
        """
        self._loop.rollback_end()
        return self._checkpointer.state_dict(self.iter, self.current_step)

    def load_state_dict(self, state: TrainingState) -> None:
        """Restore the state of another solver of the same run; that had more processes, perhaps.

        A snapshot of this iteration is written: the process that should write it may have died.

        Raises:
            SnapshotError: The state is of another net or type of solver; nothing has changed.
        """
        with self.net.lock:
            self._checkpointer.load_state_dict(state)
            self._set_position(state.iteration, state.step)
        if is_due(self.param.snapshot, self.iter):
            self._loop.write_snapshot()

    def _set_position(self, iteration: int, step: int) -> None:
        """Continue from an iteration whose state has been restored."""
        self.iter, self.current_step, self.lr = iteration, step, math.nan
        self._checkpointer.inconsistent = False
        self._loop.rollback_end = nothing
        self._run.report.loggers.begin()

    # -- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop the threads, close the files of all nets and the loggers, and free the lock."""
        self._checkpointer.close()
        self._run.report.loggers.close()
        for net in (*self._run.team.nets, *self.test_nets):
            net.close()

    def __reduce__(self) -> NoReturn:
        message = (
            "a solver cannot be copied or pickled; make another with the same fields and give its "
            "load_state_dict() what state_dict() returns, or write snapshot() and restore() it"
        )
        raise TypeError(message)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise attribute_error(type(self), name, guesses.SOLVER)

    def __repr__(self) -> str:
        name = self.__class__.__name__
        return f"{name}({self.type}, {self.net!r}, iteration {self.iter})"

    _repr_html_ = html_of
    tell_loggers = deprecated_attribute("Solver", "tell_loggers", "log_event")
    tell_numbers = deprecated_attribute("Solver", "tell_numbers", "log_scalars")
    carry = deprecated_attribute("Solver", "carry", "state_dict")
    take_up = deprecated_attribute("Solver", "take_up", "load_state_dict")
    asked = deprecated_attribute("Solver", "asked", "pending_requests")
