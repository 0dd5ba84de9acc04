"""Checkpointing of a run: snapshots to files, state dictionaries, and rollback of an iteration."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from demitasse.core.log import get_logger
from demitasse.core.threads import Uninterrupted
from demitasse.errors import DemitasseError, ErrorCode, SnapshotError
from demitasse.io.proto import ResumeState
from demitasse.memory import SyncedMemory
from demitasse.net import Net
from demitasse.training.checkpoint.resume_check import check_compatible, run_fingerprint
from demitasse.training.checkpoint.retention import SnapshotRetention, warn_if_disk_full
from demitasse.training.checkpoint.snapshot import Checkpoint, read_checked, write_best
from demitasse.training.checkpoint.state_file import State
from demitasse.training.context import TrainingContext

log = get_logger(__name__)


@dataclass(frozen=True)
class TrainingState:
    """State of a run between two iterations, in memory: the contents of a snapshot.

    Attributes:
        iteration: Number of updates made.
        step: Steps of the learning-rate policy.
        weights: Memories of all parameters, running averages too, (count,) each.
        history: Arrays in the solver's order, each in its parameter's shape.
        resume: An encoded ``ResumeState``.
    """

    iteration: int
    step: int
    weights: Sequence[np.ndarray]
    history: Sequence[np.ndarray]
    resume: bytes


class Checkpointer:
    """Writes the snapshots and the best weights of a run, and restores the run from a state.

    Args:
        run: The run.
        keep_last: Number of snapshots to keep; None keeps all.
        seed: The seed that the caller asked for; negative for any seed.

    Attributes:
        snapshot_pending: Whether the last snapshot could not be written.
        inconsistent: Whether an update or a restore was begun and not completed.
    """

    def __init__(self, run: TrainingContext, keep_last: int | None, seed: int) -> None:
        self._run, self._seed = run, seed
        self._retention = SnapshotRetention(run.param, keep_last)
        self._resumable = ResumableState(run, self._retention)
        self.snapshot_pending = self.inconsistent = False
        self._lost_best: SnapshotError | None = None
        if run.is_root:
            warn_if_disk_full(run.param, run.net, run.updater.history)

    # -- snapshots -----------------------------------------------------------------------------

    def write(
        self, iteration: int, step: int, prefix: str | os.PathLike[str] | None = None
    ) -> tuple[Path, Path]:
        """Write a snapshot.

        Args:
            iteration: Number of updates made so far.
            step: Step of the learning-rate policy.
            prefix: Beginning of the names of the files; None is ``snapshot_prefix``.

        Returns:
            The weights file and the state file.

        Raises:
            SnapshotError: The snapshot cannot be written; or this is another rank than 0.
            NetError: Weights are NaN or infinite, and ``on_nonfinite`` is "raise".
        """
        run = self._run
        if not run.is_root:
            message = f"got snapshot() on rank {run.rank}, and only rank 0 writes snapshots"
            raise SnapshotError(message, code=ErrorCode.BAD_STATE, rank=run.rank)
        with run.net.lock:
            self.check_consistent(iteration)
            run.nonfinite.check_weights(run.net, iteration)
            resume = self._resumable.for_snapshot()
            resume.run.CopyFrom(run_fingerprint(run))
            checkpoint = Checkpoint(
                run.param, run.net, run.updater.history, iteration, step, resume
            )
            paths = self._retention.write(checkpoint, prefix)
        self.snapshot_pending = False
        return paths

    def check_consistent(self, iteration: int) -> None:
        """Check that all weights are of one iteration.

        Raises:
            SnapshotError: They are not.
        """
        if self.inconsistent:
            message = (
                f"an update or a restore near iteration {iteration} was interrupted: some weights "
                "have changed and others have not; restore a snapshot, or make another solver"
            )
            raise SnapshotError(message, code=ErrorCode.BAD_STATE, iteration=iteration)

    def note_remote_snapshot(self, iteration: int) -> None:
        """Record a snapshot that rank 0 writes in another process.

        Raises:
            NetError: Rank 0 writes none: weights are NaN or infinite.
        """
        self.check_finite(iteration)
        self._retention.note_remote(iteration)

    def check_finite(self, iteration: int) -> None:
        """End this process if rank 0 ends because it would write the same weights.

        Raises:
            NetError: Weights are NaN or infinite, and ``on_nonfinite`` is "raise".
        """
        if self._run.nonfinite.raises:
            self._run.nonfinite.check_weights(self._run.net, iteration)

    def try_snapshot(self, snapshot: Callable[[], object], iteration: int) -> None:
        """Write a snapshot during training; log a failure, and try again at the next one.

        Args:
            snapshot: Writes the snapshot.
            iteration: Number of updates made so far.
        """
        try:
            snapshot()
        except SnapshotError as error:
            self.snapshot_pending = True
            log.error(
                "Iteration %d: %s. TRAINING CONTINUES WITHOUT THE SNAPSHOT; the next one is tried.",
                iteration, error,
            )  # fmt: skip

    def write_best(self, iteration: int) -> None:
        """Write the weights that the last test has found to be the best so far.

        A failure is logged; the next test that is better than the file on disk is tried.

        Raises:
            NetError: Weights are NaN or infinite, and ``on_nonfinite`` is "raise".
        """
        run = self._run
        run.nonfinite.check_weights(run.net, iteration)
        try:
            write_best(run.param, run.net, iteration, run.monitor.best)
        except SnapshotError as error:
            self._lost_best = error.at(f"iteration {iteration}, {run.monitor.best}")
            run.monitor.forget_best()
            log.error("%s. TRAINING CONTINUES WITHOUT THE FILE; the next best is tried.", error)
        else:
            self._lost_best = None

    def check_best(self) -> None:
        """Raise the error of the best weights, once, at the end of training.

        Raises:
            SnapshotError: The best weights could not be written, nor any others since.
        """
        error, self._lost_best = self._lost_best, None
        if error is not None:
            raise error

    # -- rollback ------------------------------------------------------------------------------

    def savepoint(self, *, test: bool) -> Callable[[], None]:
        """Return a function that undoes all changes of an iteration before its update.

        Args:
            test: Whether the iteration may test first.
        """
        return self._resumable.savepoint(test=test)

    def repeatable_test(self, interrupted: Callable[[], bool]) -> AbstractContextManager[None]:
        """Surround a test: a run that resumes from a snapshot of this time repeats the whole test.

        Args:
            interrupted: Called at the end; if True, the test nets are rolled back.
        """
        return self._resumable.repeatable_test(interrupted)

    # -- state in memory and on disk -----------------------------------------------------------

    def state_dict(self, iteration: int, step: int) -> TrainingState:
        """Return the state of the run between two iterations.

        Args:
            iteration: Number of updates made so far.
            step: Step of the learning-rate policy.

        Raises:
            SnapshotError: An update was interrupted.
        """
        run = self._run
        with run.net.lock:
            self.check_consistent(iteration)
            resume = self._resumable.now().SerializeToString()
            weights = [memory.cpu_data().copy() for memory in weight_memories(run.net)]
            history = run.updater.history.arrays()
            return TrainingState(iteration, step, weights, history, resume)

    def load_state_dict(self, state: TrainingState) -> None:
        """Restore the state of another solver of the run.

        Iteration and step are left to the caller; until they are set, the run is ``inconsistent``.
        """
        run = self._run
        resume = ResumeState.FromString(state.resume)
        self.inconsistent = True
        for memory, array in zip(weight_memories(run.net), state.weights, strict=True):
            memory.mutable_cpu_data(discard=True)[...] = array
        run.updater.history.load(state.history)
        self._resumable.restore(resume)
        self._retention.iterations = list(resume.snapshot)
        run.nonfinite.reset()

    def restore(self, path: Path, *, force: bool = False, exact: bool = False) -> State:
        """Restore the run from a state file; on failure nothing has changed.

        Args:
            path: The state.
            force: Whether to accept a state of another run.
            exact: Whether to refuse differences that change results.

        Returns:
            The state. Its iteration and step are left to the caller; until they are set, the run is
            ``inconsistent``.

        Raises:
            ConfigError: Both ``force`` and ``exact`` are given.
            SnapshotError: The state cannot be read or does not fit.
            WeightsError: Its weights cannot be read.
            ShapeError: Its weights do not fit.
        """
        run = self._run
        history = run.updater.history
        state = read_checked(path, run.net, len(history.memories), run.updater.rule.type)
        now = run_fingerprint(run)
        check_compatible(state, now, self._seed, path, force=force, exact=exact)
        with run.net.lock:
            before, self.inconsistent = self.inconsistent, True
            if state.learned_net:
                try:
                    run.net.load(state.learned_net)
                except DemitasseError:  # nothing has changed
                    self.inconsistent = before
                    raise
            history.load(state.history)
            resume = self._resumable.restore(state.resume)
            self._retention.resume(path, state.iter, resume.snapshot)
        run.nonfinite.reset()
        return state


def weight_memories(net: Net) -> list[SyncedMemory]:
    """Return the memories of all parameters of a net, running averages too, without repeats."""
    return list(dict.fromkeys(blob.data_memory for blob in net.structure.params_list))


class ResumableState:
    """State that an exact resume needs besides weights and history.

    This is: seed, passes and data positions of the nets, the last losses, the best metrics, and the
    iterations of the snapshots.

    Args:
        run: The run.
        retention: The snapshots that are kept.
    """

    def __init__(self, run: TrainingContext, retention: SnapshotRetention) -> None:
        self._run, self._retention = run, retention
        self._initial = self.now()
        self._before_test: ResumeState | None = None

    def now(self) -> ResumeState:
        """Return the present state."""
        run = self._run
        resume = ResumeState(seed=run.net.seed)
        for name, net in _nets(run.net, run.test_nets):
            part = resume.net.add(net=name, passes=net.passes)
            for layer in net.layers:
                counters = layer.state()
                if counters:
                    position = part.layer.add(layer=layer.name)
                    for key, value in counters.items():
                        position.counter.add(key=key, value=value)
        resume.losses.extend(run.report.losses)
        resume.watch.extend(run.monitor.to_proto())
        resume.snapshot.extend(self._retention.iterations)
        return resume

    def for_snapshot(self) -> ResumeState:
        """Return the state for a snapshot: during a test, the state before the test."""
        return self._before_test or self.now()

    def restore(self, resume: ResumeState | None) -> ResumeState:
        """Restore all but the iterations of the snapshots.

        Args:
            resume: The state; None restores the state at the start, at the first record.

        Returns:
            The state that was restored.
        """
        run, resume = self._run, self._initial if resume is None else resume
        _restore_nets(resume, _nets(run.net, run.test_nets))
        for net in run.team.other_nets:
            _restore_nets(resume, [("train", net)])
        run.team.broadcast_weights()
        run.report.set_losses(resume.losses)
        run.monitor.load(resume.watch)
        return resume

    def savepoint(self, *, test: bool) -> Callable[[], None]:
        """Return a function that undoes all changes of an iteration before its update.

        Args:
            test: Whether the iteration may test first.
        """
        run = self._run
        nets = [net.savepoint() for net in (*run.training_nets, *(run.test_nets if test else ()))]
        losses, metrics = list(run.report.losses), run.monitor.to_proto()

        def rollback() -> None:
            with Uninterrupted():
                for rollback_net in nets:
                    rollback_net()
                run.report.set_losses(losses)
                run.monitor.load(metrics)

        return rollback

    @contextmanager
    def repeatable_test(self, interrupted: Callable[[], bool]) -> Iterator[None]:
        """Surround a test; snapshots of this time contain the state before the test.

        Args:
            interrupted: Called at the end; if True, or after an error, the test nets are rolled
                back.
        """
        nets, done = [net.savepoint() for net in self._run.test_nets], False
        self._before_test = self.now()
        try:
            yield
            done = not interrupted()
        finally:
            for rollback in nets if not done else ():
                rollback()
            self._before_test = None


def _restore_nets(resume: ResumeState, nets: Iterable[tuple[str, Net]]) -> None:
    """Restore seed, passes and data positions of nets; parts without a state stay unchanged."""
    parts = {part.net: part for part in resume.net}
    for name, net in nets:
        if resume.HasField("seed"):
            net.seed = resume.seed  # fillers have run, and are not repeated
            for layer in net.layers:
                layer.context.seed = resume.seed
        part = parts.get(name)
        if part is None:
            continue
        net.passes = part.passes
        for position in part.layer:
            if not net.has_layer(position.layer):
                log.warning(
                    "The state has a position of layer %r, and the %s net has no such layer.",
                    position.layer, name,
                )  # fmt: skip
                continue
            counters = {counter.key: counter.value for counter in position.counter}
            net.layer_by_name(position.layer).set_state(counters)


def _nets(train: Net, tests: Sequence[Net]) -> Iterator[tuple[str, Net]]:
    yield "train", train
    for index, net in enumerate(tests):
        yield f"test {index}", net
