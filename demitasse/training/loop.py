"""The training loop.

One step of :class:`TrainingLoop`, after ``iter`` updates, is:

1. Make a savepoint of data positions, pass counters, losses and metrics.
2. Clear the gradients.
3. Test every ``test_interval`` iterations, and update the metrics. A test may end the run here.
4. Call ``on_start``.
5. Run ``iter_size`` batches forward and backward; gradients add up. Several workers average them.
6. Check that the loss is finite. Display it every ``display`` iterations.
7. Call ``on_gradients_ready``.
8. Update: compute the learning rate; clip gradients, divide by ``iter_size``, add the decay, and
   apply the rule of the solver. ``iter`` is one more.
9. Write a snapshot every ``snapshot`` iterations, or on request. End on request.

If a step fails before its update, the savepoint is restored: a step happens completely or not at
all.

A device that queues its work does not wait for the loss between 5 and 8: it queues the update, too,
with the loss as a guard. If the loss is NaN or infinite, the device changes nothing, and the host
reads the loss later. Where the device can, passes and update are captured as one graph, and
replayed from then on. The host then prepares the next iteration before it reads the loss. If that
is NaN or infinite, both iterations are undone, and the first is made again.

Source: Caffe, ``Solver::Step`` in ``src/caffe/solver.cpp``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial, reduce
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

from demitasse.backends.arrays import Array
from demitasse.backends.updates import PreparedUpdate
from demitasse.core.log import get_logger, number
from demitasse.core.threads import Uninterrupted
from demitasse.errors import ConfigError, DataError, ErrorCode, NetError
from demitasse.memory import SyncedMemory
from demitasse.net.execution import Loss
from demitasse.net.graph_capture import CapturableWork, GraphCapture
from demitasse.net.rollback import nothing
from demitasse.training.context import Requests, TrainingContext
from demitasse.training.lr_policies import Rate, learning_rate
from demitasse.training.solver_param import check_fields, is_due

if TYPE_CHECKING:
    from demitasse.training.checkpoint.checkpointer import Checkpointer
    from demitasse.training.solver import Solver

log = get_logger(__name__)


class _NotFinite(Exception):  # noqa: N818 - not an error: the iterations are undone
    """The loss of the last iteration is NaN or infinite; the present one is not queued."""


class _Unread(NamedTuple):
    """The loss of a complete iteration, and functions that record it and undo the iteration."""

    loss: Loss
    record: Callable[[float], None]
    undo: Callable[[], None]


class TrainingLoop:
    """Runs the steps of a solver; see the module's docstring."""

    def __init__(
        self,
        solver: Solver,
        run: TrainingContext,
        checkpointer: Checkpointer,
        requests: Requests,
        custom_update: bool,
    ) -> None:
        self._solver, self._run = solver, run
        self._checkpointer, self._requests = checkpointer, requests
        self._custom_update = custom_update
        self._queued = QueuedIteration(run, self._read_last)
        self._unread: _Unread | None = None
        self._losses: list[float] = []  # losses of earlier steps that the present step has read
        self._last = 0  # iteration at which the present call ends; its last loss is read at once
        self.rollback_end: Callable[[], None] = nothing
        """Undoes all that followed the last update, e.g. a last test."""

    def run(self, iterations: int) -> None:
        """Make so many updates, or fewer if a test or a request ends the run."""
        solver, run = self._solver, self._run
        if not isinstance(iterations, Real) or iterations % 1:
            message = f"got {iterations!r} iterations, expected a whole number"
            raise ConfigError(message, code=ErrorCode.INVALID, got=iterations)
        check_fields(run.param, run.updater.rule)  # they may have changed
        self._checkpointer.check_consistent(solver.iter)
        last = self._last = solver.iter + int(iterations)
        solver.stopped = solver.early_stopped = False
        self.rollback_end = nothing
        if iterations > 0 and (run.param.snapshot or run.monitor.best):
            self._checkpointer.lock_prefix()
        run.report.set_window(run.param.average_loss)
        run.report.start(run.net, solver.iter)
        try:
            while solver.iter < last and self._step():
                request = run.team.agree_on_request(self._requests.next())
                if request:
                    self._settle()
                if request == "snapshot" or is_due(run.param.snapshot, solver.iter):
                    self.write_snapshot()
                if request == "stop":
                    solver.stopped = True
                    break
        finally:
            self._settle()
            run.report.stop(solver.iter)

    def _step(self) -> bool:
        """Make one step, completely or not at all; return False if a test ended the run."""
        solver, run = self._solver, self._run
        test = is_due(run.param.test_interval, solver.iter)
        test = test and (solver.iter > 0 or run.param.test_initialization)
        queue = self._can_queue_update()
        if test or solver.on_start or not queue:
            self._settle()
        iteration, self._losses = solver.iter, []
        undo, losses = self._checkpointer.resumable.savepoint(test=test), self._losses

        def rollback() -> None:
            undo()
            run.report.losses.extend(losses)

        try:
            cleared = bool(solver.on_start) or not queue
            if cleared:
                run.net.clear_param_diffs()
            if test:
                self._run_tests()
                if solver.stopped or solver.early_stopped:
                    self.rollback_end = rollback
                    return False
            for callback in [*solver.on_start]:  # one may remove itself
                callback()
            queue = self._can_queue_update() if test or solver.on_start else queue
            if not (queue and self._queue_update(rollback, cleared=cleared)):
                if queue or not cleared:
                    run.net.clear_param_diffs()
                compute_gradients(run, iteration, solver.lr)
                for callback in [*solver.on_gradients_ready]:
                    callback()
                solver.apply_update()
        except _NotFinite:
            rollback()
            self._settle()
        except BaseException:
            if solver.iter == iteration:
                rollback()
            raise
        return True

    def _read_last(self) -> None:
        """Read the loss of the last iteration, unless it was read; _NotFinite for NaN."""
        if self._unread is not None:
            value = self._unread.loss.wait()
            if not math.isfinite(value):
                raise _NotFinite
            self._unread.record(value)
            self._losses.append(value)
            self._unread = None

    def _settle(self) -> None:
        """Read the loss of the last iteration; if it is not finite, make the iteration again."""
        try:
            self._read_last()
        except _NotFinite:
            unread, self._unread, self._last = self._unread, None, 0
            if unread is not None:
                unread.undo()
                self._step()

    def update(self) -> None:
        """Change the weights by the gradients of the net, and count the iteration."""
        solver, run = self._solver, self._run
        with run.net.lock, Uninterrupted():
            self._checkpointer.check_consistent(solver.iter)
            run.net.check_gradients()
            before = solver.current_step
            solver.lr, solver.current_step = scheduled_rate(run, solver.iter, before)
            log_rate(run, solver.iter, solver.lr, solver.current_step, before)
            self._checkpointer.inconsistent = True
            numbers = run.updater.numbers(run.param, solver.lr, solver.iter)
            run.updater.apply(run.param, numbers)
            solver.iter += 1
            self._checkpointer.inconsistent = False

    def _can_queue_update(self) -> bool:
        """Return whether the update can be queued before the host reads the loss.

        Several batches in an iteration are one program of immutable arrays, or are queued one by
        one.
        """
        solver, run = self._solver, self._run
        return (
            not self._custom_update
            and not solver.on_gradients_ready
            and run.team.is_single
            and run.net.device.backend.queues
            and (run.param.iter_size == 1 or not run.net.device.backend.mutable)
            and run.param.lr_policy != "plateau"
            and not (is_due(run.param.display, solver.iter) and run.param.debug_info)
        )

    def _may_read_later(self) -> bool:
        """Return whether the loss may be read when the next iteration is prepared."""
        solver, run = self._solver, self._run
        param, following = run.param, solver.iter + 1
        return (
            self._queued.capture.repeats
            and run.net.device.backend.mutable
            and following < self._last
            and not is_due(param.display, solver.iter)
            and not is_due(param.snapshot, following)
            and not is_due(param.test_interval, following)
            and not run.net.execution.labels.metrics
        )

    def _queue_update(self, rollback: Callable[[], None], *, cleared: bool) -> bool:
        """Queue the passes and the update, and read the loss; return False if all was undone.

        If the loss is NaN or infinite, the device has changed nothing. The update is then made
        after all, unless such a loss ends the run. With several batches in the iteration, it is
        undone instead: each is to be run alone.
        """
        solver, run, iteration = self._solver, self._run, self._solver.iter
        run.net.debug_info = False
        before = solver.lr, solver.current_step
        launch = self._queued.begin(cleared=cleared)

        def undo() -> None:
            rollback()
            solver.iter, (solver.lr, solver.current_step) = iteration, before

        with run.net.lock, Uninterrupted():
            self._checkpointer.check_consistent(iteration)
            rate, step = scheduled_rate(run, iteration, solver.current_step)
            self._checkpointer.inconsistent = True
            record = partial(record_loss, run, iteration=iteration, rate=solver.lr)
            try:
                loss, value = launch(rate, iteration), 0.0
                if self._may_read_later():
                    self._unread = _Unread(loss, record, undo)
                elif run.param.iter_size > 1 and not math.isfinite(loss.wait()):
                    self._checkpointer.inconsistent = False
                    rollback()
                    return False
                else:
                    value = loss.read()
                    record(value)
            except (DataError, NetError, _NotFinite):
                self._checkpointer.inconsistent = False
                raise
            if not math.isfinite(value):
                run.updater.apply(run.param, run.updater.numbers(run.param, rate, iteration))
            display(run, iteration)
            log_rate(run, iteration, rate, step, solver.current_step)
            solver.lr, solver.current_step = rate, step
            solver.iter += 1
            self._checkpointer.inconsistent = False
        return True

    def _run_tests(self) -> None:
        """Run all test nets, update the metrics, and keep the best weights."""
        solver, run = self._solver, self._run
        results = solver.test_all()
        if solver.stopped or not results:
            return
        # NaN scores are detected in the last batch of a process: process 0 decides for all
        values = run.team.broadcast_object(run.monitor.values(results))
        run.monitor.update(values, solver.iter)
        if run.monitor.improved:
            if run.is_root:
                if weights := self._checkpointer.write_best(solver.iter):
                    solver.log_event("best", {"weights": str(weights)})
            else:
                self._checkpointer.check_finite(solver.iter)
        solver.early_stopped = run.monitor.should_stop

    def write_snapshot(self) -> None:
        """Write a snapshot during training, or record that rank 0 writes it."""
        self._checkpointer.resumable.gather()
        if self._run.is_root:
            self.write_test_snapshot()
        else:
            self._checkpointer.note_remote_snapshot(self._solver.iter)

    def write_test_snapshot(self) -> None:
        """Write a snapshot on rank 0, also during a test, when other processes do not take part."""
        self._checkpointer.try_snapshot(self._solver.snapshot, self._solver.iter)

    def finish(self) -> None:
        """Display the loss after the last update, and test once more."""
        solver, run = self._solver, self._run
        self.rollback_end = self._checkpointer.resumable.savepoint(test=True)
        if is_due(run.param.display, solver.iter):
            run.report.losses.append(run.team.forward())
            run.report.log_last_loss(solver.iter)
        if is_due(run.param.test_interval, solver.iter):
            self._run_tests()


def scheduled_rate(run: TrainingContext, iteration: int, step: int) -> Rate:
    """Return the learning rate after ``iteration`` updates, and the step of its policy.

    ``step`` is that of the update before. ConfigError is raised without a field of the policy, or
    after its end.
    """
    if run.param.lr_policy == "plateau":
        step = run.monitor.plateau_step(run.param, iteration, run.report.smoothed_loss, step)
    return learning_rate(run.param, iteration, step)


def log_rate(run: TrainingContext, iteration: int, rate: float, step: int, before: int) -> None:
    """Log a step of the policy that is new, not ``before``, and the rate if it is displayed."""
    if run.param.lr_policy == "multistep" and step != before:
        log.info("MultiStep Status: Iteration %d, step = %d", iteration, step)
    if is_due(run.param.display, iteration):
        run.report.log_rate(iteration, rate)


def compute_gradients(run: TrainingContext, iteration: int, rate: float) -> None:
    """Run ``iter_size`` batches forward and backward, and check and display the loss.

    ``rate`` is the learning rate of the last update, for messages. A loss that is NaN because a
    label is no class raises a DataError.
    """
    run.net.debug_info = is_due(run.param.display, iteration) and run.param.debug_info
    loss = run.team.forward_backward(run.param.iter_size)
    record_loss(run, loss, iteration=iteration, rate=rate)
    display(run, iteration)


def display(run: TrainingContext, iteration: int) -> None:
    """Display the loss and the outputs every ``display`` iterations."""
    if is_due(run.param.display, iteration) and run.is_root:
        run.report.display(run.net, iteration, run.param.display)
        if run.updater.loss_scale is not None:
            scale = float(run.updater.loss_scale.cpu_data()[0])
            log.info("    Loss scale = %s", number(scale))
            run.report.loggers.scalars(iteration, {"loss_scale": scale})
        run.report.log_wait_times(iteration, run.team.wait_times)


def record_loss(run: TrainingContext, loss: float, *, iteration: int, rate: float) -> None:
    """Add the loss of an iteration to the report, and check that it is finite (NetError)."""
    run.report.losses.append(loss)
    run.nonfinite.check_loss(loss, run, iteration, rate)


class QueuedIteration:
    """Queues the passes and the update of an iteration; replays them as one graph if possible.

    ``before`` is called once an iteration is prepared, before its passes are queued or launched.
    """

    def __init__(self, run: TrainingContext, before: Callable[[], None]) -> None:
        self._run, self._before = run, before
        self.capture = GraphCapture(run.net.execution, "iterations", self._memories)
        self._update: PreparedUpdate | None = None

    def begin(self, *, cleared: bool) -> Callable[[float, int], Loss]:
        """Load the next batch, and queue the passes unless they are captured; return the rest.

        The rest is a function of the learning rate and the number of updates made so far. The loss
        guards the update: if the loss is NaN or infinite, nothing changes.

        ``cleared`` states that the gradients are zero already. Otherwise they are cleared here,
        unless a replay follows another replay: a graph does not read earlier gradients.
        """
        run, param = self._run, self._run.param
        execution, updater, several = run.net.execution, run.updater, param.iter_size > 1
        repeats = not cleared and self.capture.repeats
        if not (cleared or repeats):
            run.net.clear_param_diffs()
        constants = updater.numbers(param, 0.0, 0), updater.multipliers(), updater.moved()
        if self.capture.ready(param.clip_gradients, param.iter_size, constants):
            return partial(self._replay_or_capture, self._load_batches())
        self._before()
        if repeats:
            run.net.clear_param_diffs()
        if several:
            with execution.exclusive("forward and backward"):
                total = self._queue_batches(self._load_batches())
                loss = execution.finish_pass(total, param.iter_size)
        else:
            loss = execution.queue_passes()

        def update(rate: float, iteration: int) -> Loss:
            updater.apply(param, updater.numbers(param, rate, iteration), guard=loss.array)
            return loss

        return update

    def _load_batches(self) -> list[list[Array]]:
        """Load the batches of an iteration; return the device arrays of all but the last."""
        execution, batches = self._run.net.execution, []
        for _ in range(self._run.param.iter_size - 1):
            execution.queue_sources()
            batches.append([memory.gpu_data() for memory in execution.source_memories()])
        execution.queue_sources()
        return batches

    def _replay_or_capture(self, batches: list[list[Array]], rate: float, iteration: int) -> Loss:
        """Queue everything after the data layers."""
        run = self._run
        net, updater, param = run.net, run.updater, run.param
        numbers = updater.numbers(param, rate, iteration)

        def queue() -> Array | None:
            loss = self._queue_batches(batches)
            updater.apply(param, numbers, guard=loss)
            return loss

        def record(*traced: Any) -> Array | None:
            if traced:
                rate, correction, batches = traced
                loss = self._queue_batches(batches)
                updater.apply(param, replace(numbers, rate=rate, correction=correction), loss)
                return loss
            loss = net.execution.queue_rest(backward=True)
            self._update = updater.prepare(param, numbers, loss)
            self._update.queue()
            return loss

        def clear() -> None:
            self._before()
            net.clear_param_diffs()

        def update_inputs() -> None:
            if self._update is not None:
                self._update.write(updater.updates(numbers))
            self._before()

        work = CapturableWork(
            queue, record, (numbers.rate, numbers.correction, batches), update_inputs, clear
        )  # fmt: skip
        loss = self.capture.run(work)
        return net.execution.finish_pass(loss, param.iter_size)

    def _queue_batches(self, batches: list[list[Array]]) -> Array | None:
        """Run ``batches``, then the batch in the memories; return the mean loss."""
        execution = self._run.net.execution
        if not batches:
            return execution.queue_rest(backward=True)
        counter, memories = execution.pass_counter, execution.source_memories()
        first, losses = counter.passes, list[Array | None]()
        for index, arrays in enumerate((*batches, [memory.gpu_data() for memory in memories])):
            for memory, array in zip(memories, arrays, strict=True):
                memory.set_gpu_data(array)
            counter.passes = first + index
            losses.append(execution.queue_rest(backward=True))
        counter.passes = first
        total = reduce(execution.device.backend.add, losses)
        return None if total is None else total / len(losses)

    def _memories(self) -> list[SyncedMemory]:
        return [*self._run.net.execution.memories(), *self._run.updater.history.memories]
