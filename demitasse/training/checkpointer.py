"""Writing a training run to files, and resuming it from them."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from demitasse.core.log import get_logger
from demitasse.errors import DemitasseError, ErrorCode, SnapshotError
from demitasse.io.proto import ResumeState
from demitasse.training.carried import TrainingState, set_weights, weights_of
from demitasse.training.checkpoint import Checkpoint
from demitasse.training.continuation import Continuation
from demitasse.training.keeper import Keeper, warn_of_a_full_disk
from demitasse.training.run import Run
from demitasse.training.run_facts import run_facts
from demitasse.training.same_run import check_same_run
from demitasse.training.snapshot import read_checked, write_best
from demitasse.training.state_file import State

__all__ = ["Checkpointer"]

log = get_logger(__name__)


class Checkpointer:
    """Writes the snapshots and the best weights of a run, and resumes it from a state.

    Args:
        run: The run.
        keep_last: How many snapshots to keep; None keeps all.
        seed: The seed that was asked for; below 0, any.

    Attributes:
        unwritten: Whether the last snapshot could not be written.
        torn: Whether an update or a restore was begun and not done to its end.
    """

    def __init__(self, run: Run, keep_last: int | None, seed: int) -> None:
        self._run, self._seed = run, seed
        self._keeper = Keeper(run.param, keep_last)
        self._continuation = Continuation(run, self._keeper)
        self.unwritten = self.torn = False
        self._lost_best: SnapshotError | None = None
        if run.is_root:
            warn_of_a_full_disk(run.param, run.net, run.updater.history)

    def write(
        self, iteration: int, step: int, prefix: str | os.PathLike[str] | None = None
    ) -> tuple[Path, Path]:
        """Write a snapshot.

        Args:
            iteration: Number of updates made so far.
            step: The step of the learning-rate policy.
            prefix: How the names of the files begin; None takes ``snapshot_prefix``.

        Returns:
            The weights file and the state file.

        Raises:
            SnapshotError: It cannot be written; or this is another rank than 0.
            NetError: Weights are NaN or infinite, and this is to end the run.
        """
        run = self._run
        if not run.is_root:
            message = (
                "this solver is not of rank 0, which alone writes snapshots; call snapshot there"
            )
            raise SnapshotError(message, code=ErrorCode.BAD_STATE, rank=run.rank)
        with run.net.lock:
            self.need_whole(iteration)
            run.nonfinite.check_weights(run.net, iteration)
            resume = self._continuation.to_keep()
            resume.run.CopyFrom(run_facts(run))
            checkpoint = Checkpoint(
                run.param, run.net, run.updater.history, iteration, step, resume
            )
            paths = self._keeper.write(checkpoint, prefix)
        self.unwritten = False
        return paths

    def need_whole(self, iteration: int) -> None:
        """Refuse weights that are neither of one iteration nor of the next.

        Raises:
            SnapshotError: They are; says what to do.
        """
        if self.torn:
            message = (
                f"an update or a restore was cut short near iteration {iteration}: some weights "
                "have changed and others have not; restore a snapshot, or make another solver"
            )
            raise SnapshotError(message, code=ErrorCode.BAD_STATE, iteration=iteration)

    def remember(self, *, test: bool) -> Callable[[], None]:
        """Return a function that takes back what an iteration does before its update.

        Args:
            test: Whether it may test first.
        """
        return self._continuation.remember(test=test)

    def state_dict(self, iteration: int, step: int) -> TrainingState:
        """Return the run as it is between two iterations, for another solver to take up.

        Args:
            iteration: Number of updates made so far.
            step: The step of the learning-rate policy.

        Raises:
            SnapshotError: An update was cut short.
        """
        run = self._run
        with run.net.lock:
            self.need_whole(iteration)
            resume = self._continuation.now().SerializeToString()
            history = run.updater.history.arrays()
            return TrainingState(iteration, step, weights_of(run.net), history, resume)

    def load_state_dict(self, carried: TrainingState) -> None:
        """Bring the run to where another solver of it was; until it is there it is ``torn``."""
        run = self._run
        resume = ResumeState.FromString(carried.resume)
        self.torn = True
        set_weights(run.net, carried.weights)
        run.updater.history.load(carried.history)
        self._continuation.go_on_from(resume)
        self._keeper.iterations = list(resume.snapshot)
        run.nonfinite.forget()

    def written_elsewhere(self, iteration: int) -> None:
        """Take note of a snapshot that the first process writes, in another.

        Raises:
            NetError: The first process writes none, for weights are NaN or infinite.
        """
        self.need_finite(iteration)
        self._keeper.note(iteration)

    def need_finite(self, iteration: int) -> None:
        """End the run where the first process does, when it is to write the same weights.

        Raises:
            NetError: Some are NaN or infinite, and this is to end the run.
        """
        if self._run.nonfinite.stops:
            self._run.nonfinite.check_weights(self._run.net, iteration)

    def attempt(self, snapshot: Callable[[], object], iteration: int) -> None:
        """Write a snapshot on the way: where it fails, the run goes on and tries the next one.

        Args:
            snapshot: Writes it.
            iteration: Number of updates made so far.
        """
        try:
            snapshot()
        except SnapshotError as error:
            self.unwritten = True
            log.error(
                "Iteration %d: %s. THE RUN GOES ON WITHOUT IT; the next snapshot is tried again.",
                iteration, error,
            )  # fmt: skip

    def write_best(self, iteration: int) -> None:
        """Write the weights that the last test has found to be the best so far.

        Where that fails the run goes on; the next test that beats what is on the disk is tried.

        Raises:
            NetError: Some are NaN or infinite, and this is to end the run.
        """
        run = self._run
        run.nonfinite.check_weights(run.net, iteration)
        try:
            write_best(run.param, run.net, iteration, run.watch.best)
        except SnapshotError as error:
            self._lost_best = error.at(f"iteration {iteration}, {run.watch.best}")
            run.watch.forget_best()
            log.error("%s. THE RUN GOES ON WITHOUT IT; the next best is tried again.", error)
        else:
            self._lost_best = None

    def check_best(self) -> None:
        """Say at the end, once, that the best weights could not be written.

        Raises:
            SnapshotError: They could not, and no others were written since.
        """
        error, self._lost_best = self._lost_best, None
        if error is not None:
            raise error

    def whole_test(self, interrupted: Callable[[], bool]) -> AbstractContextManager[None]:
        """Surround a test that a resumed run is to repeat from its beginning.

        Args:
            interrupted: Asked at the end; if so, the test nets go back to where it began.
        """
        return self._continuation.whole_test(interrupted)

    def restore(self, path: Path, *, force: bool = False, exact: bool = False) -> State:
        """Bring the run to where a state was written; where that fails nothing has changed.

        Args:
            path: The state.
            force: Whether to go on from a state of another run.
            exact: Whether to refuse what gives other numbers than the run that never stopped.

        Returns:
            The state, of which iteration and step of the policy are still to be taken; until they
            are, the run counts as ``torn``.

        Raises:
            ConfigError: Both ``force`` and ``exact`` are asked for.
            SnapshotError: The state cannot be read or does not fit.
            WeightsError: Its weights cannot be read.
            ShapeError: Its weights do not fit.
        """
        run = self._run
        history = run.updater.history
        state = read_checked(path, run.net, len(history.memories), run.updater.rule.type)
        check_same_run(state, run_facts(run), self._seed, path, force=force, exact=exact)
        with run.net.lock:
            torn, self.torn = self.torn, True
            if state.learned_net:
                try:
                    run.net.load(state.learned_net)
                except DemitasseError:  # nothing has changed
                    self.torn = torn
                    raise
            history.load(state.history)
            self._continuation.restore(state, path)
        run.nonfinite.forget()
        return state
