"""A run between two iterations, to be written down and to be gone on from.

Weights and history are held by others; here is what an exact continuation needs besides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from demitasse.net import Net
from demitasse.proto import ResumeState
from demitasse.solvers.keeper import Keeper
from demitasse.solvers.progress import progress_of, set_progress
from demitasse.solvers.report import TrainReport
from demitasse.solvers.state_file import State
from demitasse.solvers.watch import Watch

__all__ = ["Continuation"]


class Continuation:
    """Data positions and passes of the nets, the last losses, the best tests, the snapshots.

    Args:
        net: The net that is trained.
        test_nets: The nets to test with.
        report: The last losses.
        watch: The best results of tests.
        keeper: The snapshots that are kept.
    """

    def __init__(
        self,
        net: Net,
        test_nets: Sequence[Net],
        report: TrainReport,
        watch: Watch,
        keeper: Keeper,
    ) -> None:
        self._net, self._test_nets = net, test_nets
        self._report, self._watch, self._keeper = report, watch, keeper
        self._untouched = self.now()
        self._before_test: ResumeState | None = None
        self._undo_test: list[Callable[[], None]] = []

    def now(self) -> ResumeState:
        """Return how far the run has come."""
        resume = progress_of(self._net, self._test_nets)
        resume.losses.extend(self._report.losses)
        resume.watch.extend(self._watch.to_proto())
        resume.snapshot.extend(self._keeper.iterations)
        return resume

    def to_keep(self) -> ResumeState:
        """Return what a snapshot is to hold: during a test, what was before it."""
        return self._before_test or self.now()

    def begin_test(self) -> None:
        """From now on a snapshot is to repeat the whole test that begins here."""
        self._undo_test = [net.remember() for net in self._test_nets]
        self._before_test = self.now()

    def end_test(self, *, undo: bool) -> None:
        """End the test; with ``undo`` the test nets go back to where it began."""
        for take_back in self._undo_test if undo else ():
            take_back()
        self._before_test, self._undo_test = None, []

    def remember(self, *, test: bool) -> Callable[[], None]:
        """Return a function that takes back what an iteration does before its update.

        Args:
            test: Whether it may test first.
        """
        parts = [self._net.remember()]
        if test:
            parts += [net.remember() for net in self._test_nets]
        losses, watched = list(self._report.losses), self._watch.to_proto()

        def take_back() -> None:
            for one in parts:
                one()
            self._report.set_losses(losses)
            self._watch.load(watched)

        return take_back

    def restore(self, state: State, path: Path) -> None:
        """Bring the parts to where a state was written, or to the first record if it tells none.

        Args:
            state: The state.
            path: Its file.
        """
        resume = state.resume if state.resume is not None else self._untouched
        set_progress(resume, self._net, self._test_nets)
        self._report.set_losses(resume.losses)
        self._watch.load(resume.watch)
        self._keeper.resume(path, state.iter, resume.snapshot)
