"""A run between two iterations, to be written down and to be gone on from.

Weights and history are held by others; here is what an exact continuation needs besides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from demitasse.core.threads import Uninterrupted
from demitasse.io.proto import ResumeState
from demitasse.training.keeper import Keeper
from demitasse.training.progress import progress_of, set_progress
from demitasse.training.run import Run
from demitasse.training.state_file import State

__all__ = ["Continuation"]


class Continuation:
    """Data positions and passes of the nets, the last losses, the best tests, the snapshots.

    Args:
        run: The run.
        keeper: The snapshots that are kept.
    """

    def __init__(self, run: Run, keeper: Keeper) -> None:
        self._run, self._keeper = run, keeper
        self._untouched = self.now()
        self._before_test: ResumeState | None = None

    def now(self) -> ResumeState:
        """Return how far the run has come."""
        resume = progress_of(self._run.net, self._run.test_nets)
        resume.losses.extend(self._run.report.losses)
        resume.watch.extend(self._run.watch.to_proto())
        resume.snapshot.extend(self._keeper.iterations)
        return resume

    def to_keep(self) -> ResumeState:
        """Return what a snapshot is to hold: during a test, what was before it."""
        return self._before_test or self.now()

    @contextmanager
    def whole_test(self, interrupted: Callable[[], bool]) -> Iterator[None]:
        """Surround a test: a snapshot on the way is to repeat the whole of it.

        Args:
            interrupted: Asked at the end; if so, or if it is cut short by an error, the test nets
                go back to where it began.
        """
        nets, done = [net.savepoint() for net in self._run.test_nets], False
        self._before_test = self.now()
        try:
            yield
            done = not interrupted()
        finally:
            for take_back in nets if not done else ():
                take_back()
            self._before_test = None

    def remember(self, *, test: bool) -> Callable[[], None]:
        """Return a function that takes back what an iteration does before its update.

        Args:
            test: Whether it may test first.
        """
        run = self._run
        nets = [net.savepoint() for net in (*run.training_nets, *(run.test_nets if test else ()))]
        losses, watched = list(run.report.losses), run.watch.to_proto()

        def take_back() -> None:
            with Uninterrupted():
                for one in nets:
                    one()
                run.report.set_losses(losses)
                run.watch.load(watched)

        return take_back

    def restore(self, state: State, path: Path) -> None:
        """Bring the parts to where a state was written, or to the first record if it tells none.

        Args:
            state: The state.
            path: Its file.
        """
        resume = state.resume if state.resume is not None else self._untouched
        self.go_on_from(resume)
        self._keeper.resume(path, state.iter, resume.snapshot)

    def go_on_from(self, resume: ResumeState) -> None:
        """Bring the parts, but for the snapshots that are kept, to where ``now`` found them."""
        set_progress(resume, self._run.net, self._run.test_nets)
        for net in self._run.team.other_nets:
            set_progress(resume, net, ())
        self._run.team.broadcast_weights()
        self._run.report.set_losses(resume.losses)
        self._run.watch.load(resume.watch)
