"""Solver: trains a net, tests it now and then, and writes snapshots.

Source: Caffe, ``src/caffe/solver.cpp``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from demitasse.config import settings
from demitasse.device import Device
from demitasse.errors import ConfigError, DemitasseError, SnapshotError
from demitasse.interrupts import Uninterrupted
from demitasse.log import get_logger
from demitasse.plan.liveness import Keep
from demitasse.proto import RunFacts, SolverParameter
from demitasse.solvers.checkpoint import Checkpoint
from demitasse.solvers.continuation import Continuation
from demitasse.solvers.detection import mean_precisions
from demitasse.solvers.due import (
    display_is_due,
    last_test_is_due,
    snapshot_is_due,
    test_is_due,
)
from demitasse.solvers.evaluate import mean_outputs
from demitasse.solvers.fields import check_fields, check_options, read_fields
from demitasse.solvers.history import History
from demitasse.solvers.keeper import Keeper, warn_of_a_full_disk
from demitasse.solvers.labels import check_labels
from demitasse.solvers.nets import make_test_nets, make_train_net
from demitasse.solvers.nonfinite import Nonfinite, OnNonfinite
from demitasse.solvers.policies import learning_rate
from demitasse.solvers.report import TrainReport, tell_test
from demitasse.solvers.requests import Request, Requests
from demitasse.solvers.run_facts import run_facts
from demitasse.solvers.same_run import check_same_run
from demitasse.solvers.snapshot import check_folder, check_prefix, read_checked, write_best
from demitasse.solvers.updater import Updater
from demitasse.solvers.updates import find_rule
from demitasse.solvers.watch import EarlyStopping, Watch
from demitasse.weights.pairing import OnMismatch

__all__ = ["Solver"]

Callback = Callable[[], None]

log = get_logger(__name__)


class Solver:
    """Trains a net.

    It may be subclassed: ``step`` and ``solve`` call ``apply_update``, ``test_all``, ``test`` and
    ``snapshot``.

    Args:
        source: A solver's prototxt file or message.
        type: "SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam" or "AdamW"; None takes
            what ``source`` says, else this wins.
        device: Where its nets run; None asks the configuration.
        dtype: "float32" or "float64".
        lowered: Whether backends may lower operations; None asks the setting ``plan``.
        seed: Key of all random numbers; None takes ``random_seed``, then the configuration.
        base_dir: Folder where named files are looked for besides the working directory; by
            default that of ``source``.
        on_nonfinite: What to do when the loss is NaN or infinite: "warn" once, or "stop" with an
            error before the weights are changed. The same of weights that are to be written: write
            them with a warning, or "stop" with an error and write nothing.
        on_mismatch: What to do with layers in ``weights`` that do not fit: "error", or "skip".
        keep_last: How many snapshots to keep; older ones of this run are deleted, also after it
            has been resumed. None keeps all.
        keep_best: An output of a test net, e.g. "accuracy". Whenever a test finds it better than
            ever, the weights are written as ``<snapshot_prefix>_best.caffemodel``. Of outputs that
            are neither accuracies nor losses say what is better: "name:max" or "name:min".
        early_stopping: When to end training before ``max_iter``, or None.
        keep: Names of blobs of the net to train whose gradients are kept besides those of inputs
            and outputs, or "outputs" for those alone, as in ``Net``; the others share buffers. None
            keeps all.
        lenient: Whether fields that are not known, of solver and nets, are left out with a warning.
        rank: Which of ``ranks`` data-parallel workers this is; only the first tests and writes
            snapshots.
        ranks: How many of them there are.

    Attributes:
        param: The solver's fields; changes count from the next iteration on.
        net: The net that is trained.
        test_nets: The nets to test with; they hold the weights of ``net``.
        iter: Updates made so far.
        lr: Learning rate of the last update; before the first, NaN.
        current_step: Steps that the ``multistep`` policy has taken.
        stopped: Whether the last run was ended by a request.
        early_stopped: Whether it was ended by ``early_stopping``.
        on_start: Called before the passes of each iteration.
        on_gradients_ready: Called after them, before the update.
        on_test: Called after each test with the number of the net and the means of its outputs.
        on_snapshot: Called after each snapshot with its weights file and its state file.

    Raises:
        ConfigError: The type is unknown, or a field is missing or has a value it cannot have.
        SnapshotError: Snapshots could not be written where they are to go.
        DemitasseError: A net cannot be made.
    """

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
        on_mismatch: OnMismatch = "error",
        keep_last: int | None = None,
        keep_best: str | None = None,
        early_stopping: EarlyStopping | None = None,
        keep: Keep = None,
        lenient: bool = False,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self.param, folder = read_fields(source, lenient=lenient)
        if type is not None:
            self.param.type = type
        rule = find_rule(self.param.type)
        check_fields(self.param, rule)
        check_options(self.param, keep_last, early_stopping, ranks)
        self._is_root, self._ranks = rank == 0, ranks
        if self._is_root:
            check_prefix(self.param, best=keep_best is not None)
        if seed is None and self.param.random_seed >= 0:
            seed = self.param.random_seed
        self._asked_seed = settings.get("seed") if seed is None else seed
        base = folder if base_dir is None else Path(base_dir)
        options: dict[str, Any] = {
            "device": device, "dtype": dtype, "lowered": lowered, "rank": rank, "ranks": ranks,
            "lenient": lenient,
        }  # fmt: skip
        own = {**options, "seed": seed, "keep": keep}
        self.net = make_train_net(self.param, base, own, on_mismatch)
        options |= {"device": self.net.device, "seed": self.net.seed}
        self.test_nets = make_test_nets(self.param, base, options, on_mismatch)
        for net in self.test_nets:
            net.share_trained_layers_with(self.net)
        self.iter = self.current_step = 0
        self.lr = math.nan
        self.stopped = self.early_stopped = False
        self.on_start: list[Callback] = []
        self.on_gradients_ready: list[Callback] = []
        self.on_test: list[Callable[[int, dict[str, np.ndarray]], None]] = []
        self.on_snapshot: list[Callable[[Path, Path], None]] = []
        self._watch = Watch(self.param, self.test_nets, keep_best, early_stopping)
        self._keeper = Keeper(self.param, keep_last)
        self._updater = Updater(self.net, rule)
        self._report = TrainReport(self.param.average_loss)
        self._nonfinite = Nonfinite(on_nonfinite)
        self._unwritten = False  # whether the last snapshot could not be written
        self._torn = False  # whether an update or a restore was begun and not done to its end
        self._requests = Requests()
        self._continuation = Continuation(
            self.net, self.test_nets, self._report, self._watch, self._keeper
        )
        if self._is_root:
            warn_of_a_full_disk(self.param, self.net, self.history)
        log.info("Solver scaffolding done.")

    @property
    def type(self) -> str:
        """What its rule is called: "SGD", "Adam", ..."""
        return self._updater.rule.type

    # -- training ------------------------------------------------------------------------------

    def step(self, iterations: int) -> None:
        """Make so many updates, testing, displaying and writing snapshots when they are due.

        Raises:
            NetError: Another thread is at work on the net.
            SnapshotError: The last snapshot could not be written, and still cannot be.
        """
        with self.net.turn:  # between passes, too: gradients and history are part of it
            self._need_whole()
            self._advance(iterations)
            if self._unwritten:
                self.snapshot()

    def _advance(self, iterations: int) -> None:
        last = self.iter + iterations
        self.stopped = self.early_stopped = False
        self._report.start(self.iter)
        while self.iter < last:
            if not self._whole_iteration():
                break
            request = self._requests.next()
            due = request == "snapshot" or snapshot_is_due(self.param, self.iter)
            if due and self._is_root:
                self._try_snapshot()
            if request == "stop":
                self.stopped = True
                break

    def _whole_iteration(self) -> bool:
        """Test if that is due, and make one update; all of it or, if it is cut short, nothing.

        Returns:
            Whether the update was made: a test may have said that it is time to stop.
        """
        now, due = self.iter, test_is_due(self.param, self.iter)
        take_back = self._continuation.remember(test=due)
        try:
            self.net.clear_param_diffs()
            if due:
                self._heed_test()
                if self.stopped or self.early_stopped:
                    return False
            self._iterate()
        except BaseException:
            if self.iter == now:
                take_back()
            raise
        return True

    def solve(self, resume: str | os.PathLike[str] | None = None) -> None:
        """Train to ``max_iter``, write a last snapshot, show the last loss and test once more.

        Args:
            resume: A state to continue from.

        Raises:
            ConfigError: ``max_iter`` is missing.
            SnapshotError: The last snapshot could not be written. Where that can be known, it is
                said before training; a snapshot on the way that fails is only logged.
        """
        if not self.param.HasField("max_iter"):
            message = "max_iter is missing; say how many iterations to train for, or call step"
            raise ConfigError(message)
        if self.param.snapshot_after_train and self._is_root:
            check_folder(self.param.snapshot_prefix)
        log.info("Solving %s", self.net.name)
        log.info("Learning Rate Policy: %s", self.param.lr_policy)
        if resume is not None:
            log.info("Restoring previous solver status from %s", os.fspath(resume))
            self.restore(resume)
        with self.net.turn:
            self._need_whole()
            self._advance(self.param.max_iter - self.iter)
        due = self.param.snapshot_after_train and not snapshot_is_due(self.param, self.iter)
        if (due or self._unwritten) and self._is_root:
            self.snapshot()
        if self.stopped:
            log.info("Optimization stopped early.")
            return
        if self.early_stopped:
            log.info("Optimization Done.")
            return
        if display_is_due(self.param, self.iter):
            self._report.losses.append(self.net.forward())
            self._report.last(self.iter)
        if last_test_is_due(self.param, self.iter):
            self._heed_test()
        log.info("Optimization Done.")

    def apply_update(self) -> None:
        """Change the weights by the gradients that the net holds; one more iteration is done.

        Raises:
            NetError: The net's last backward pass was not done to its end.
            SnapshotError: An earlier update was not.
        """
        with self.net.turn, Uninterrupted():
            self._need_whole()
            self.net.need_whole_gradients()
            self._apply_update()

    def _need_whole(self) -> None:
        """Refuse weights that are neither of one iteration nor of the next.

        Raises:
            SnapshotError: They are; says what to do.
        """
        if self._torn:
            message = (
                f"an update or a restore was cut short near iteration {self.iter}: some weights "
                "have changed and others have not; restore a snapshot, or make another solver"
            )
            raise SnapshotError(message)

    def _apply_update(self) -> None:
        before = self.current_step
        if self.param.lr_policy == "plateau":
            self.current_step = self._watch.plateau_step(
                self.param, self.iter, self.smoothed_loss, before
            )
        self.lr, self.current_step = learning_rate(self.param, self.iter, self.current_step)
        if self.param.lr_policy == "multistep" and self.current_step != before:
            log.info("MultiStep Status: Iteration %d, step = %d", self.iter, self.current_step)
        if display_is_due(self.param, self.iter):
            self._report.rate(self.iter, self.lr)
        self._torn = True
        self._updater.apply(self.param, self.lr, self.iter)
        self.iter += 1
        self._torn = False

    def _pass(self) -> float:
        loss = self.net.forward_backward()
        if not math.isfinite(loss):
            check_labels(self.net)
        return loss

    def _iterate(self) -> None:
        _call(self.on_start)
        display = display_is_due(self.param, self.iter)
        self.net.debug_info = display and self.param.debug_info
        loss = sum(self._pass() for _ in range(self.param.iter_size)) / self.param.iter_size
        self._report.losses.append(loss)
        self._nonfinite.check(loss, self.net, self.iter, self.lr)
        if display:
            self._report.display(self.net, self.iter, self.param.display)
        _call(self.on_gradients_ready)
        self.apply_update()

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
        return self._report.smoothed_loss

    @property
    def history(self) -> History:
        """What the solver remembers of each parameter."""
        return self._updater.history

    # -- testing -------------------------------------------------------------------------------

    def test_all(self) -> list[dict[str, np.ndarray]]:
        """Test with every test net, on the first of several ranks.

        Returns:
            For each net tested to the end, the mean of every output.
        """
        if not self._is_root:
            return []
        results, done = [], False
        self._continuation.begin_test()  # a snapshot on the way is to repeat the whole test
        try:
            for index in range(len(self.test_nets)):
                if not self.stopped:
                    results.append(self.test(index))
            done = not self.stopped
        finally:  # what has not been done to its end is repeated, perhaps after a resume
            self._continuation.end_test(undo=not done)
        return results

    def _heed_test(self) -> None:
        """Test with every test net, and do what the results call for."""
        results = self.test_all()
        if self.stopped or not results:
            return
        self._watch.tested(results, self.iter)
        if self._watch.improved:
            self._nonfinite.check_weights(self.net, self.iter)
            write_best(self.param, self.net, self.iter, self._watch.best)
        self.early_stopped = self._watch.exhausted

    def test(self, index: int = 0) -> dict[str, np.ndarray]:
        """Run ``test_iter`` batches through a test net with the present weights.

        Where ``test_iter`` is 0 it is one epoch: every record counts once.

        Returns:
            The mean of every output over the batches, or with ``eval_type: "detection"`` the mean
            average precision of it; empty when the test was interrupted.
        """
        self._need_whole()
        log.info("Iteration %d, Testing net (#%d)", self.iter, index)
        net = self.test_nets[index]
        if net.device is not self.net.device:  # which may have moved
            net.to(self.net.device)
        net.share_trained_layers_with(self.net)
        batches = self.param.test_iter[index]
        if self.param.eval_type == "detection":
            means, loss = mean_precisions(
                net,
                batches,
                self.param.ap_version,
                self._may_go_on,
                per_class=self.param.show_per_class_result,
            )
        else:
            means, loss = mean_outputs(net, batches, self._may_go_on)
        if self.stopped:
            log.info("Test interrupted.")
            return {}
        tell_test(net, index, self.iter, means, loss if self.param.test_compute_loss else None)
        for callback in self.on_test:
            callback(index, means)
        return means

    def _may_go_on(self) -> bool:
        while request := self._requests.next():
            if request == "snapshot":
                self._try_snapshot()
            else:
                self.stopped = True
        return not self.stopped

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
        if not self._is_root:
            message = (
                "this solver is not of rank 0, which alone writes snapshots; call snapshot there"
            )
            raise SnapshotError(message)
        with self.net.turn:
            self._need_whole()
            self._nonfinite.check_weights(self.net, self.iter)
            resume = self._continuation.to_keep()
            resume.run.CopyFrom(self._facts())
            checkpoint = Checkpoint(
                self.param, self.net, self.history, self.iter, self.current_step, resume
            )
            paths = self._keeper.write(checkpoint, prefix)
        self._unwritten = False
        for callback in self.on_snapshot:
            callback(*paths)
        return paths

    def _try_snapshot(self) -> None:
        """Write a snapshot; the run goes on without it where that fails, and tries the next one."""
        try:
            self.snapshot()
        except SnapshotError as error:
            self._unwritten = True
            log.error(
                "Iteration %d: %s. THE RUN GOES ON WITHOUT IT; the next snapshot is tried again.",
                self.iter,
                error,
            )

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
        state = read_checked(Path(path), self.net, len(self.history.memories), self.type)
        check_same_run(state, self._facts(), self._asked_seed, Path(path), force=force, exact=exact)
        with self.net.turn:
            torn, self._torn = self._torn, True
            if state.learned_net:
                try:
                    self.net.load(state.learned_net)
                except DemitasseError:  # nothing has changed
                    self._torn = torn
                    raise
            self.history.load(state.history)
            self.iter, self.current_step = state.iter, state.current_step
            self._continuation.restore(state, Path(path))
            self._torn = False
        self._nonfinite.forget()
        self.lr = math.nan

    def _facts(self) -> RunFacts:
        return run_facts(self.type, self.param, self.net, self.test_nets, self._ranks)

    # -- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop the threads and close the files of all nets."""
        for net in (self.net, *self.test_nets):
            net.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        name = self.__class__.__name__
        return f"{name}({self.type}, {self.net!r}, iteration {self.iter})"


def _call(callbacks: Sequence[Callback]) -> None:
    for callback in callbacks:
        callback()
