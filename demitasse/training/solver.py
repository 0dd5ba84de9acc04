"""Solver: trains a net, tests it now and then, and writes snapshots.

Source: Caffe, ``src/caffe/solver.cpp``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from demitasse.core.config import settings
from demitasse.core.deprecated import deprecated_attribute, renamed_arguments
from demitasse.core.device import Device
from demitasse.core.html_repr import html_of
from demitasse.core.log import get_logger
from demitasse.core.threads import Uninterrupted
from demitasse.errors import ConfigError, DataError, ErrorCode, NetError
from demitasse.io.proto import SolverParameter
from demitasse.io.weights.load import OnMismatch
from demitasse.plan.liveness import Keep
from demitasse.training.carried import TrainingState
from demitasse.training.checkpointer import Checkpointer
from demitasse.training.distributed import (
    AllReduce,
    Communicator,
    LocalCommunicator,
    make_shards,
    make_worker_group,
)
from demitasse.training.due import (
    display_is_due,
    last_test_is_due,
    snapshot_is_due,
    test_is_due,
)
from demitasse.training.evaluator import Evaluator, OnBatch
from demitasse.training.fields import check_fields, check_options, read_fields
from demitasse.training.history import History
from demitasse.training.iteration import accumulate_gradients, loss_waits, take_loss
from demitasse.training.launcher import Launcher
from demitasse.training.nets import make_nets
from demitasse.training.nonfinite import Nonfinite, OnNonfinite
from demitasse.training.policies import learning_rate
from demitasse.training.report import TrainReport
from demitasse.training.requests import Request, Requests
from demitasse.training.run import Run
from demitasse.training.schedule import scheduled_rate
from demitasse.training.snapshot import check_folder, check_prefix
from demitasse.training.told import about_run
from demitasse.training.tracking import Broadcast, Logger
from demitasse.training.updater import Updater
from demitasse.training.updates import find_rule
from demitasse.training.watch import EarlyStopping, Watch

__all__ = ["Solver"]

Callback = Callable[[], None]

log = get_logger(__name__)


class Solver:
    """Trains a net.

    It may be subclassed: ``step`` and ``solve`` call ``apply_update``, ``test_all``, ``test`` and
    ``snapshot``.

    Args:
        source: A solver's prototxt file or message.
        type: "SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam", "AdamW", "LARS" or
            "LAMB"; None takes what ``source`` says, else this wins.
        device: Where its nets run; None asks the configuration.
        dtype: "float32" or "float64".
        lowered: Whether backends may lower operations; None asks the setting ``optimize``.
        seed: Key of all random numbers; None takes ``random_seed``, then the configuration.
        base_dir: Folder where named files are looked for besides the working directory; by
            default that of ``source``.
        on_nonfinite: What to do when the loss is NaN or infinite: "warn" once, or "stop" with an
            error before the weights are changed. The same of weights that are to be written: write
            them with a warning, or "stop" with an error and write nothing.
        on_mismatch: "raise" an error for layers in ``weights`` that do not fit, or "skip" them.
        keep_last: How many snapshots to keep; older ones of this run are deleted, also after it
            has been resumed. None keeps all.
        keep_best: An output of a test net, e.g. "accuracy". Whenever a test finds it better than
            ever, the weights are written as ``<snapshot_prefix>_best.caffemodel``. Of outputs that
            are neither accuracies nor losses say what is better: "name:max" or "name:min".
        early_stopping: When to end training before ``max_iter``, or None.
        keep: Names of blobs of the net to train whose gradients are kept besides those of inputs
            and outputs, or "outputs" for those alone, as in ``Net``; the others share buffers. None
            keeps all.
        ignore_unknown_fields: Skip unknown fields of solver and nets with a warning.
        rank: Number of this solver among ``world_size`` data-parallel solvers whose gradients the
            caller adds up in ``on_gradients_ready``. Only rank 0 tests and writes snapshots.
        world_size: Number of those solvers.
        num_shards: Number of shards of the data, each with the net's batch size: the joined batch
            is so many times as large. The same for the whole life of a run, while the number of
            processes may change. None: one shard for each process.
        communicator: The processes that train together, e.g. ``Mpi()``; None for this process
            alone. They share out the batches of tests; only rank 0 writes snapshots.
        allreduce: How gradients are summed: "deterministic" gives the same bits for any number of
            processes, "fast" uses the order of MPI or NCCL, "fp16" sends half precision. None:
            "fast" between GPUs that NCCL connects, else "deterministic".
        overlap: Whether gradients are exchanged while backward computes those of earlier layers.

    Attributes:
        param: The solver's fields; changes count from the next iteration on.
        net: The net that is trained.
        test_nets: The nets to test with; they hold the weights of ``net``.
        iter: Updates made so far.
        lr: Learning rate of the last update; before the first, NaN.
        current_step: Steps that the ``multistep`` policy has taken.
        stopped: Whether the last run, or a test after it, was ended by a request.
        early_stopped: Whether it was ended by ``early_stopping``.
        on_start: Called before the passes of each iteration.
        on_gradients_ready: Called after them, before the update.
        on_test_batch: Called before each batch of a test and after the last, with the number of
            the net, how many batches are done, and of how many; 0 for a whole epoch. Where n
            processes share out the batches, before each n of them.
        on_test: Called after each test with the number of the net and the means of its outputs; of
            several processes in the first.
        on_snapshot: Called after each snapshot with its weights file and its state file.
        loggers: Take the numbers of the run, as ``demitasse.training.tracking.JsonLines(path)``
            does: loss, learning rate and speed when they are displayed, results of tests,
            snapshots. Only rank 0 logs them. One that fails does not end the run. ``close``
            closes them.

    Raises:
        ConfigError: The type is unknown, or a field is missing or has a value it cannot have.
        SnapshotError: Snapshots could not be written where they are to go.
        DemitasseError: A net cannot be made.
    """

    @renamed_arguments(
        ranks="world_size",
        shards="num_shards",
        processes="communicator",
        reduce="allreduce",
        lenient="ignore_unknown_fields",
    )
    def __init__(
        self,
        source: str | os.PathLike[str] | SolverParameter,
        *,
        type: str | None = None,
        device: str | Device | None = None,
        dtype: str = "float32",
        lowered: bool | None = None,
        seed: int | None = None,
        base_dir: str | os.PathLike[str] | None = None,
        on_nonfinite: OnNonfinite = "warn",
        on_mismatch: OnMismatch = "raise",
        keep_last: int | None = None,
        keep_best: str | None = None,
        early_stopping: EarlyStopping | None = None,
        keep: Keep = None,
        ignore_unknown_fields: bool = False,
        rank: int = 0,
        world_size: int = 1,
        num_shards: int | None = None,
        communicator: Communicator | None = None,
        allreduce: AllReduce | None = None,
        overlap: bool = False,
    ) -> None:
        self.param, folder = read_fields(
            source, type=type, ignore_unknown_fields=ignore_unknown_fields
        )
        rule = find_rule(self.param.type)
        check_fields(self.param, rule)
        check_options(self.param, keep_last, early_stopping, world_size)
        processes = LocalCommunicator() if communicator is None else communicator
        shards = make_shards(num_shards, processes)
        if shards.count > 1:
            rank, world_size = shards.rank, shards.count
        if rank == 0:
            check_prefix(self.param, best=keep_best is not None)
        if seed is None and self.param.random_seed >= 0:
            seed = self.param.random_seed
        asked_seed = settings.get("seed") if seed is None else seed
        base = folder if base_dir is None else Path(base_dir)
        options: dict[str, Any] = {
            "device": device,
            "dtype": dtype,
            "lowered": lowered,
            "rank": rank,
            "world_size": world_size,
            "ignore_unknown_fields": ignore_unknown_fields,
        }
        self.net, self.test_nets = make_nets(
            self.param, base, options, seed=seed, keep=keep, on_mismatch=on_mismatch
        )
        self.iter = self.current_step = 0
        self.lr = math.nan
        self.stopped = self.early_stopped = False
        self._before_the_end: Callback = _nothing
        self.on_start: list[Callback] = []
        self.on_gradients_ready: list[Callback] = []
        self.on_test_batch: list[OnBatch] = []
        self.on_test: list[Callable[[int, dict[str, np.ndarray]], None]] = []
        self.on_snapshot: list[Callable[[Path, Path], None]] = []
        self.loggers: list[Logger] = []
        told = Broadcast(
            self.loggers if rank == 0 else [], lambda: about_run(self.param, self.net, world_size)
        )
        self._run = Run(
            self.param,
            self.net,
            self.test_nets,
            Updater(self.net, rule),
            TrainReport(self.param.average_loss, told, self.param.iter_size * world_size),
            Watch(self.param, self.test_nets, keep_best, early_stopping),
            Nonfinite(on_nonfinite),
            make_worker_group(self.net, processes, shards, allreduce, overlap=overlap),
            rank,
            world_size,
        )
        self._launcher = Launcher(self._run)
        self._requests = Requests()
        self._checkpointer = Checkpointer(self._run, keep_last, asked_seed)
        self._evaluator = Evaluator(
            self._run,
            self._requests,
            lambda: self._checkpointer.attempt(self.snapshot, self.iter),
            self.on_test_batch,
        )
        log.info("Solver scaffolding done.")

    @property
    def type(self) -> str:
        """What its rule is called: "SGD", "Adam", ..."""
        return self._run.updater.rule.type

    # -- training ------------------------------------------------------------------------------

    def step(self, iterations: int) -> None:
        """Make so many updates, testing, displaying and writing snapshots when they are due.

        Raises:
            NetError: Another thread is at work on the net.
            SnapshotError: The last snapshot could not be written, and still cannot be; or the
                best weights could not.
        """
        with self.net.lock:  # between passes, too: gradients and history are part of it
            self._advance(iterations)
            if self._checkpointer.unwritten:
                self.snapshot()
        self._checkpointer.check_best()

    def _advance(self, iterations: int) -> None:
        self._checkpointer.need_whole(self.iter)
        last = self.iter + iterations
        self.stopped = self.early_stopped = False
        self._before_the_end = _nothing
        self._run.report.start(self.net, self.iter)
        while self.iter < last:
            if not self._whole_iteration():
                break
            request = self._run.team.agree_on_request(self._requests.next())
            due = request == "snapshot" or snapshot_is_due(self.param, self.iter)
            if due:
                self._write_one()
            if request == "stop":
                self.stopped = True
                break

    def _write_one(self) -> None:
        """Write a snapshot on the way, or let the first process do it."""
        if self._run.is_root:
            self._checkpointer.attempt(self.snapshot, self.iter)
        else:
            self._checkpointer.written_elsewhere(self.iter)

    def _whole_iteration(self) -> bool:
        """Test if that is due, and make one update; all of it or, if it is cut short, nothing.

        Returns:
            Whether the update was made: a test may have said that it is time to stop.
        """
        now, due = self.iter, test_is_due(self.param, self.iter)
        take_back = self._checkpointer.remember(test=due)
        try:
            self.net.clear_param_diffs()
            if due:
                self._test_and_heed()
                if self.stopped or self.early_stopped:
                    self._before_the_end = take_back
                    return False
            _call(self.on_start)
            if self._loss_waits():
                self._update_ahead()
            else:
                accumulate_gradients(self._run, self.iter, self.lr)
                _call(self.on_gradients_ready)
                self.apply_update()
        except BaseException:
            if self.iter == now:
                take_back()
            raise
        return True

    def _loss_waits(self) -> bool:
        """Whether the loss may be read when the update has been queued already."""
        plain = type(self).apply_update is Solver.apply_update and not self.on_gradients_ready
        return plain and loss_waits(self._run, self.iter)

    def _update_ahead(self) -> None:
        """Queue the passes and the update, and read the loss then.

        Where it is NaN or infinite the device has left all as it was. The update is then made after
        all, unless such a loss ends the run.
        """
        run, now = self._run, self.iter
        self.net.debug_info = False
        launch = self._launcher.begin()
        with self.net.lock, Uninterrupted():
            self._checkpointer.need_whole(now)
            rate, step = scheduled_rate(run, now, self.current_step)
            self._checkpointer.torn = True
            loss = launch(rate, now)
            try:
                value = loss.read()
                take_loss(run, value, now, self.lr)
            except (DataError, NetError):
                self._checkpointer.torn = False
                raise
            if not math.isfinite(value):
                run.updater.apply(self.param, rate, now)
            self.lr, self.current_step = rate, step
            self.iter += 1
            self._checkpointer.torn = False

    def solve(self, resume: str | os.PathLike[str] | None = None) -> None:
        """Train to ``max_iter``, write a last snapshot, show the last loss and test once more.

        Args:
            resume: A state to continue from.

        Raises:
            ConfigError: ``max_iter`` is missing.
            SnapshotError: The last snapshot, or the best weights, could not be written. Where that
                can be known, it is said before training; what fails on the way is only logged.
        """
        if not self.param.HasField("max_iter"):
            message = "max_iter is missing; say how many iterations to train for, or call step"
            raise ConfigError(
                message, fields=("max_iter",), code=ErrorCode.MISSING, field="max_iter"
            )
        if self.param.snapshot_after_train and self._run.is_root:
            check_folder(self.param.snapshot_prefix)
        log.info("Solving %s", self.net.name)
        log.info("Learning Rate Policy: %s", self.param.lr_policy)
        if resume is not None:
            log.info("Restoring previous solver status from %s", os.fspath(resume))
            self.restore(resume)
        with self.net.lock:
            self._advance(self.param.max_iter - self.iter)
        due = self.param.snapshot_after_train and not snapshot_is_due(self.param, self.iter)
        if due or self._checkpointer.unwritten:
            if self._run.is_root:
                self.snapshot()
            else:
                self._checkpointer.need_finite(self.iter)
        if self.stopped:
            log.info("Optimization stopped early.")
            return
        if not self.early_stopped:
            self._finish()
        log.info("Optimization Done.")
        self._checkpointer.check_best()

    def _finish(self) -> None:
        """Show the loss after the last update, and test once more."""
        self._before_the_end = self._checkpointer.remember(test=True)
        if display_is_due(self.param, self.iter):
            self._run.report.losses.append(self.net.forward())
            self._run.report.last(self.iter)
        if last_test_is_due(self.param, self.iter):
            self._test_and_heed()

    def apply_update(self) -> None:
        """Change the weights by the gradients that the net holds; one more iteration is done.

        Raises:
            NetError: The net's last backward pass was not done to its end.
            SnapshotError: An earlier update was not.
        """
        with self.net.lock, Uninterrupted():
            self._checkpointer.need_whole(self.iter)
            self.net.check_gradients()
            self.lr, self.current_step = scheduled_rate(self._run, self.iter, self.current_step)
            self._checkpointer.torn = True
            self._run.updater.apply(self.param, self.lr, self.iter)
            self.iter += 1
            self._checkpointer.torn = False

    @property
    def next_lr(self) -> float:
        """Learning rate of the present iteration, which the next update takes.

        Policy ``plateau`` may still take a step when that update comes.

        Raises:
            ConfigError: There is none: the policy lacks a field, or has come to its end.
        """
        return learning_rate(self.param, self.iter, self.current_step)[0]

    @property
    def smoothed_loss(self) -> float:
        """Mean loss of the last ``average_loss`` iterations, of earlier runs too; NaN before."""
        return self._run.report.smoothed_loss

    @property
    def history(self) -> History:
        """What the solver remembers of each parameter."""
        return self._run.updater.history

    # -- testing -------------------------------------------------------------------------------

    def test_all(self) -> list[dict[str, np.ndarray]]:
        """Test with every test net.

        All processes of a run call this. Where somebody else adds up the gradients of several
        ranks, only the first of these tests.

        Returns:
            For each net tested to the end, the mean of every output.
        """
        results: list[dict[str, np.ndarray]] = []
        if self._run.team.is_single and not self._run.is_root:
            return results
        self.stopped = False
        with self._checkpointer.whole_test(lambda: self.stopped):
            for index in range(len(self.test_nets)):
                if not self.stopped:
                    results.append(self.test(index))
        return results

    def _test_and_heed(self) -> None:
        """Test with every test net, and do what the results call for."""
        results = self.test_all()
        if self.stopped or not results:
            return
        self._run.watch.tested(results, self.iter)
        if self._run.watch.improved:
            if self._run.is_root:
                self._checkpointer.write_best(self.iter)
            else:
                self._checkpointer.need_finite(self.iter)
        self.early_stopped = self._run.watch.exhausted

    def test(self, index: int = 0) -> dict[str, np.ndarray]:
        """Run ``test_iter`` batches through a test net with the present weights.

        Where ``test_iter`` is 0 it is one epoch: every record counts once. All processes of a run
        call this: they share out the batches, or the first runs them all where the net needs that.

        Returns:
            The mean of every output over the batches, or with ``eval_type: "detection"`` the mean
            average precision of it; empty when the test was interrupted.

        Raises:
            ConfigError: There is no such test net.
        """
        self._checkpointer.need_whole(self.iter)
        means = self._evaluator.test(index, self.iter)
        self.stopped = means is None
        if means is None:
            return {}
        for callback in self.on_test if self._run.is_root else ():
            callback(index, means)
        return means

    # -- loggers -------------------------------------------------------------------------------

    def tell_loggers(self, kind: str, facts: Mapping[str, object]) -> None:
        """Tell every logger of something that happened at the present iteration.

        Args:
            kind: What it is.
            facts: About it, as JSON knows values.
        """
        self._run.report.loggers.event(self.iter, kind, facts)

    def tell_numbers(self, values: Mapping[str, float]) -> None:
        """Tell every logger of numbers, by name, at the present iteration."""
        self._run.report.loggers.scalars(self.iter, values)

    # -- requests ------------------------------------------------------------------------------

    def request(self, action: Request | None) -> None:
        """Ask a running solver for something as soon as it can; safe in signal handlers.

        To ask twice for what has not been done yet is to ask once. Ranks may all be asked for a
        snapshot: rank 0 writes it, the others go on.

        Args:
            action: "stop", "snapshot", or None to take back what has not been done yet.
        """
        self._requests.ask(action)

    # -- snapshots -----------------------------------------------------------------------------

    def snapshot(self, prefix: str | os.PathLike[str] | None = None) -> tuple[Path, Path]:
        """Write the weights and the state as ``<prefix>_iter_<N>...``; only rank 0 does.

        Args:
            prefix: ``snapshot_prefix`` by default.

        Returns:
            The weights file and the state file.

        Raises:
            SnapshotError: They cannot be written, and files that were there are whole; or this is
                another rank than 0; or weights are NaN or infinite and ``on_nonfinite`` is "stop".
        """
        paths = self._checkpointer.write(self.iter, self.current_step, prefix)
        weights, state = map(str, paths)
        self.tell_loggers("snapshot", {"weights": weights, "state": state})
        for callback in self.on_snapshot:
            callback(*paths)
        return paths

    def restore(
        self, path: str | os.PathLike[str], *, force: bool = False, exact: bool = False
    ) -> None:
        """Continue from a state that we or Caffe wrote, with the weights it names.

        A run continued from our own state goes on bit for bit as if it had never stopped; where
        that is not so, because data, fields, threads or others are not what they were, a warning
        lists what is different. A state that does not tell of data positions begins at the first
        record.

        Args:
            path: The state.
            force: Go on although its weights, its parameters or the type of its solver are
                another run's.
            exact: Refuse whatever would give other numbers than the run that never stopped.

        Raises:
            ConfigError: Both are asked for.
            SnapshotError: The state cannot be read or does not fit; nothing has changed.
            WeightsError: Its weights cannot be read; nothing has changed.
            ShapeError: Its weights do not fit; nothing has changed.
        """
        with self.net.lock:
            state = self._checkpointer.restore(Path(path), force=force, exact=exact)
            self.iter, self.current_step = state.iter, state.current_step
            self._checkpointer.torn = False
        self.lr = math.nan
        self._run.report.loggers.begin()

    # -- processes that die ---------------------------------------------------------------------

    def state_dict(self) -> TrainingState:
        """Return the run as it is between two iterations, for another solver of it to take up.

        What comes behind the last update, such as a last test, is taken back, and to be repeated.

        Raises:
            SnapshotError: An update was cut short.
        """
        self._before_the_end()
        return self._checkpointer.state_dict(self.iter, self.current_step)

    def load_state_dict(self, carried: TrainingState) -> None:
        """Go on where another solver of the same run was, in fewer processes than that had.

        A snapshot that was due is written: who was to write it may have died.
        """
        with self.net.lock:
            self._checkpointer.load_state_dict(carried)
            self.iter, self.current_step = carried.iteration, carried.step
            self._checkpointer.torn = False
        self._run.report.loggers.begin()
        if snapshot_is_due(self.param, self.iter):
            self._write_one()

    @property
    def pending_requests(self) -> list[Request]:
        """What it was asked for and may not have done."""
        undone = self._requests.undone
        return [*undone, "stop"] if self.stopped else undone

    carry = deprecated_attribute("Solver", "carry", "state_dict")
    take_up = deprecated_attribute("Solver", "take_up", "load_state_dict")
    asked = deprecated_attribute("Solver", "asked", "pending_requests")

    # -- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop the threads and close the files of all nets, and close the loggers."""
        self._run.report.loggers.close()
        for net in (*self._run.training_nets, *self.test_nets):
            net.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        name = self.__class__.__name__
        return f"{name}({self.type}, {self.net!r}, iteration {self.iter})"

    def _repr_html_(self) -> str:
        return html_of(self)


def _nothing() -> None:
    """Stand for what there is nothing to take back of."""


def _call(callbacks: Sequence[Callback]) -> None:
    for callback in callbacks:
        callback()
