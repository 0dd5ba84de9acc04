"""Checkpointing of a run: snapshots to files, state dictionaries, and rollback of an iteration."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from demitasse.core.log import get_logger
from demitasse.core.threads import Uninterrupted
from demitasse.errors import DemitasseError, ErrorCode, SnapshotError
from demitasse.io.proto import ResumeState
from demitasse.memory import SyncedMemory
from demitasse.net import Net
from demitasse.training.checkpoint.layer_state import (
    StoredLayers,
    has_own_state,
    layer_progress,
    shard_name,
)
from demitasse.training.checkpoint.resume_check import Difference, check_compatible, run_fingerprint
from demitasse.training.checkpoint.retention import SnapshotRetention, warn_if_disk_full
from demitasse.training.checkpoint.snapshot import check_names, read_checked, write_best
from demitasse.training.checkpoint.state_file import State
from demitasse.training.context import TrainingContext
from demitasse.training.updater import LOSS_SCALE

log = get_logger(__name__)


@dataclass(frozen=True)
class TrainingState:
    """State of a run between two iterations, in memory: the contents of a snapshot."""

    iteration: int  # number of updates made
    step: int  # of the learning-rate policy
    weights: Sequence[np.ndarray]  # memories of all parameters, running averages too, (count,) each
    history: Sequence[np.ndarray]  # in the solver's order, each in its parameter's shape
    resume: bytes  # an encoded ``ResumeState``


class Checkpointer:
    """Writes the snapshots and the best weights of a run, and restores the run from a state.

    Attributes:
        resumable: State besides weights and history, savepoints, and repeatable tests.
        snapshot_pending: Whether the last snapshot could not be written.
        inconsistent: Whether an update or a restore was begun and not completed.
    """

    def __init__(self, run: TrainingContext, keep_last: int | None, seed: int) -> None:
        self._run, self._seed = run, seed  # the seed that the caller asked for; negative for any
        self._retention = SnapshotRetention(run, keep_last)
        self.resumable = ResumableState(run, self._retention)
        self.snapshot_pending = self.inconsistent = False
        self._lost_best: SnapshotError | None = None
        if run.param.snapshot:
            check_names(run)
        if run.is_root:
            warn_if_disk_full(run)

    def write(
        self, iteration: int, step: int, prefix: str | os.PathLike[str] | None = None
    ) -> tuple[Path, Path]:
        """Write a snapshot after so many updates; return the weights file and the state file.

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
            resume = ResumeState()
            resume.CopyFrom(self.resumable.before_test or self.resumable.now())
            resume.run.CopyFrom(run_fingerprint(run))
            paths = self._retention.write(iteration, step, resume, prefix)
        self.snapshot_pending = False
        return paths

    def check_consistent(self, iteration: int) -> None:
        """Raise a SnapshotError unless all weights are of one iteration."""
        if self.inconsistent:
            message = (
                f"an update or a restore near iteration {iteration} was interrupted: some weights "
                "have changed and others have not; restore a snapshot, or make another solver"
            )
            raise SnapshotError(message, code=ErrorCode.BAD_STATE, iteration=iteration)

    def note_remote_snapshot(self, iteration: int) -> None:
        """Record a snapshot of rank 0 in another process, after the same check of the weights."""
        self.check_finite(iteration)
        self._retention.note_remote(iteration)

    def check_finite(self, iteration: int) -> None:
        """End this process if rank 0 ends because it would write the same weights (NetError)."""
        if self._run.nonfinite.raises:
            self._run.nonfinite.check_weights(self._run.net, iteration)

    def lock_prefix(self) -> None:
        """Lock the prefix of the snapshots until ``close``; only on rank 0."""
        if self._run.is_root:
            self._retention.lock.take(self._run.param.snapshot_prefix)

    def close(self) -> None:
        """Free the lock of the prefix."""
        self._retention.lock.free()

    def try_snapshot(self, snapshot: Callable[[], object], iteration: int) -> None:
        """Write a snapshot during training; log a failure, and try again at the next one."""
        try:
            snapshot()
        except SnapshotError as error:
            self.snapshot_pending = True
            log.error(
                "Iteration %d: %s. TRAINING CONTINUES WITHOUT THE SNAPSHOT; the next one is tried.",
                iteration, error,
            )  # fmt: skip

    def write_best(self, iteration: int) -> Path | None:
        """Write the weights that the last test has found to be the best so far; return the file.

        A failure is logged, and None returned; the next test that is better than the file is tried.

        Raises:
            NetError: Weights are NaN or infinite, and ``on_nonfinite`` is "raise".
        """
        run = self._run
        run.nonfinite.check_weights(run.net, iteration)
        try:
            path = write_best(run, iteration)
        except SnapshotError as error:
            self._lost_best = error.at(f"iteration {iteration}, {run.monitor.best}")
            run.monitor.forget_best()
            log.error("%s. TRAINING CONTINUES WITHOUT THE FILE; the next best is tried.", error)
            return None
        self._lost_best = None
        return path

    def check_best(self) -> None:
        """Raise the SnapshotError of the best weights, once, at the end of training."""
        error, self._lost_best = self._lost_best, None
        if error is not None:
            raise error

    def state_dict(self, iteration: int, step: int) -> TrainingState:
        """Return the state of the run between two iterations, unless an update was interrupted."""
        run = self._run
        with run.net.lock:
            self.check_consistent(iteration)
            resume = self.resumable.now().SerializeToString()
            weights = [memory.cpu_data().copy() for memory in weight_memories(run.net)]
            history = [array.copy() for array in run.updater.history.arrays()]
            return TrainingState(iteration, step, weights, history, resume)

    def load_state_dict(self, state: TrainingState) -> None:
        """Restore the state of another solver of the run.

        Iteration and step are left to the caller; until they are set, the run is ``inconsistent``.
        Layers whose state was in a process that has died are reported. A state of another net or
        type of solver raises a SnapshotError, and nothing has changed.
        """
        run, memories = self._run, weight_memories(self._run.net)
        own = [*((memory.size,) for memory in memories), *run.updater.history.array_shapes()]
        arrays = [*state.weights, *state.history] if isinstance(state, TrainingState) else []
        if [array.shape for array in arrays] != own:
            message = (
                "this is the state of another net or of another type of solver; give what "
                "state_dict() of a solver of this run returned"
            )
            raise SnapshotError(message, code=ErrorCode.INCOMPATIBLE)
        resume = ResumeState.FromString(state.resume)
        for lost in self.resumable.missing(resume):
            log.warning("%s: the layer starts anew.", lost.text)
        self.inconsistent = True
        for memory, array in zip(memories, state.weights, strict=True):
            memory.mutable_cpu_data(discard=True)[...] = array
        run.updater.history.load(state.history)
        self.resumable.restore(resume)
        self._retention.iterations = list(resume.snapshot)
        run.nonfinite.reset()

    def restore(self, path: Path, *, force: bool = False, exact: bool = False) -> State:
        """Restore the run from a state file, as ``Solver.restore``; on failure nothing has changed.

        Iteration and step are left to the caller; until they are set, the run is ``inconsistent``.
        """
        run = self._run
        history = run.updater.history
        state = read_checked(path, run)
        weights = _version(state.learned_net)
        now = run_fingerprint(run)
        lost = list(self.resumable.missing(state.resume))
        check_compatible(state, now, self._seed, path, lost, force=force, exact=exact)
        with run.net.lock:
            before, self.inconsistent = self.inconsistent, True
            if state.learned_net:
                try:
                    run.net.load(state.learned_net)
                except DemitasseError:  # nothing has changed
                    self.inconsistent = before
                    raise
                if _version(state.learned_net) != weights:
                    message = "its weights were replaced while they were read; restore it again"
                    raise SnapshotError(message, code=ErrorCode.CORRUPT).at(os.fspath(path))
            history.load(state.history)
            resume = self.resumable.restore(state.resume)
            self._retention.resume(path, state.iter, resume.snapshot)
        run.nonfinite.reset()
        return state


def _version(path: str) -> tuple[int, int, int, int]:
    """Return the identity of a file and of its contents; zeros for a missing file."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return 0, 0, 0, 0
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def weight_memories(net: Net) -> list[SyncedMemory]:
    """Return the memories of all parameters of a net, running averages too, without repeats."""
    return list(dict.fromkeys(blob.data_memory for blob in net.structure.params_list))


class ResumableState:
    """State that an exact resume needs besides weights and history.

    This is: seed, passes and states of layers of the nets, the last losses, the best metrics, the
    loss scale, and the iterations of the snapshots. ``before_test`` is the state before a test in
    progress.
    """

    def __init__(self, run: TrainingContext, retention: SnapshotRetention) -> None:
        self._run, self._retention = run, retention
        self._gathered: list[bytes] | None = None
        self._initial = self.now()
        self.before_test: ResumeState | None = None

    def now(self) -> ResumeState:
        """Return the present state of all nets of this process, and of gathered shards."""
        run = self._run
        resume = ResumeState(seed=run.net.seed)
        for name, net in run.named_nets():
            part = resume.net.add(net=name, passes=net.passes)
            shard = _shard(net) if net is run.net else 0
            local = part if not shard else resume.net.add(net=shard_name(name, shard))
            _add_layers(net, self._weights(net), part, local)
        for net in run.team.nets[1:]:
            self._add_shard(resume, net)
        gathered, self._gathered = self._gathered or [], None
        known = {part.net for part in resume.net}
        for message in gathered:
            for part in ResumeState.FromString(message).net:
                if part.net not in known:
                    resume.net.append(part)
        resume.losses.extend(run.report.losses)
        resume.watch.extend(run.monitor.to_proto())
        resume.snapshot.extend(self._retention.iterations)
        if run.updater.loss_scale is not None:
            resume.loss_scale.extend(run.updater.loss_scale.cpu_data().tolist())
        return resume

    def gather(self) -> None:
        """Collect the parts of all shards, if layers have state of their own in each shard.

        All processes of the run call this.
        """
        run = self._run
        weights = self._weights(run.net)

        def shards() -> bytes:
            """Return the parts of this process's shards."""
            resume = ResumeState()
            for net in run.team.nets:
                self._add_shard(resume, net)
            return resume.SerializeToString()

        if run.team.size > 1 and any(has_own_state(layer, weights) for layer in run.net.layers):
            parts = run.team.allgather(shards)
            self._gathered = parts if run.is_root else None

    def _add_shard(self, resume: ResumeState, net: Net) -> None:
        local = resume.net.add(net=shard_name("train", _shard(net)))
        _add_layers(net, self._weights(net), ResumeState.NetProgress(), local)

    def _weights(self, net: Net) -> list[SyncedMemory]:
        """Return the memories that the weights of a snapshot restore for a net."""
        return weight_memories(self._run.net if net in self._run.test_nets else net)

    def missing(self, resume: ResumeState | None) -> Iterator[Difference]:
        """Yield the layers whose state is not in a state, for the check before a restore."""
        run = self._run
        if resume is None:  # a state of Caffe has no state of layers at all
            return
        stored = StoredLayers(resume)
        for name, net in run.named_nets():
            shards = range(run.world_size) if net is run.net else range(1)
            for layer, text in stored.missing(name, net, self._weights(net), shards):
                yield Difference(layer, text)

    def restore(self, resume: ResumeState | None) -> ResumeState:
        """Restore all but the iterations of the snapshots; return the state that was restored.

        None restores the state at the start, at the first record.
        """
        run, resume = self._run, self._initial if resume is None else resume
        stored = StoredLayers(resume)
        passes = {part.net: part.passes for part in resume.net}
        nets = [*run.named_nets(), *(("train", net) for net in run.team.nets[1:])]
        for name, net in nets:
            if resume.HasField("seed"):
                net.seed = resume.seed  # fillers have run, and are not repeated
                for layer in net.layers:
                    layer.context.seed = resume.seed
            net.passes = passes.get(name, net.passes)
            weights, shard = self._weights(net), 0 if net in run.test_nets else _shard(net)
            for layer in net.layers:
                stored.state_of(name, layer.name, shard).load(layer, weights)
            for layer_name in stored.names(name):
                if not net.has_layer(layer_name):
                    log.warning(
                        "The state has a state of layer %r, and the %s net has no such layer.",
                        layer_name, name,
                    )  # fmt: skip
        run.team.broadcast_weights()
        run.report.set_losses(resume.losses)
        run.monitor.load(resume.watch)
        run.updater.set_loss_scale(resume.loss_scale or LOSS_SCALE)
        return resume

    def savepoint(self, *, test: bool) -> Callable[[], None]:
        """Return a function that undoes all changes of an iteration before its update.

        With ``test`` the iteration may test first, and the test nets are rolled back, too.
        """
        run = self._run
        nets = [net.savepoint() for net in (*run.team.nets, *(run.test_nets if test else ()))]
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
        """Surround a test: a run that resumes from a snapshot of this time repeats the whole test.

        If ``interrupted`` is True at the end, or after an error, the test nets are rolled back.
        """
        nets, done = [net.savepoint() for net in self._run.test_nets], False
        self.gather()
        self.before_test = self.now()
        try:
            yield
            done = not interrupted()
        finally:
            for rollback in nets if not done else ():
                rollback()
            self.before_test = None


def _add_layers(
    net: Net,
    weights: Sequence[SyncedMemory],
    counted: ResumeState.NetProgress,
    local: ResumeState.NetProgress,
) -> None:
    """Add the counters of a net's layers to a part, and their other state to another."""
    for layer in net.layers:
        counters, other = layer_progress(layer, weights)
        if counted is local:
            counters.MergeFrom(other)
            other = counters
        elif counters.counter:
            counted.layer.append(counters)
        if other.counter or other.blob or other.HasField("value"):
            local.layer.append(other)


def _shard(net: Net) -> int:
    return net.layers[0].context.rank
