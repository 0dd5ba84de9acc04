"""Which snapshots of a run stay: all of them, or the last few."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from demitasse.log import get_logger
from demitasse.proto import ResumeState
from demitasse.solvers.snapshot import delete_snapshot, snapshot_paths, write_snapshot

if TYPE_CHECKING:
    from demitasse.solvers.solver import Solver

__all__ = ["Keeper", "warn_of_a_full_disk"]

log = get_logger(__name__)


class Keeper:
    """Writes the snapshots of a run, and deletes those that need not be kept.

    Args:
        last: How many to keep; None keeps all.

    Attributes:
        iterations: Those whose snapshots are there and count, oldest first.
    """

    def __init__(self, last: int | None) -> None:
        self._last = last
        self.iterations: list[int] = []

    def write(
        self, solver: Solver, prefix: str | os.PathLike[str] | None, resume: ResumeState
    ) -> tuple[Path, Path]:
        """Write a snapshot; one elsewhere than at ``snapshot_prefix`` does not count.

        Raises:
            SnapshotError: It cannot be written; nothing is deleted.
        """
        if prefix is not None:
            return write_snapshot(solver, os.fspath(prefix), resume)
        if self._last is not None:
            before = [iteration for iteration in self.iterations if iteration != solver.iter]
            resume.snapshot[:] = [*before, solver.iter]
        paths = write_snapshot(solver, solver.param.snapshot_prefix, resume)
        self.iterations = list(resume.snapshot)
        self._drop_old(solver)
        return paths

    def resume(self, solver: Solver, state: Path, resume: ResumeState) -> None:
        """Go on from a state, and do what the run that wrote it may not have come to."""
        ours = snapshot_paths(solver.param, solver.param.snapshot_prefix, solver.iter)[1]
        same = ours.resolve() == state.resolve()  # else the files may be another run's
        self.iterations = list(resume.snapshot) if same else []
        self._drop_old(solver)

    def _drop_old(self, solver: Solver) -> None:
        while self._last is not None and len(self.iterations) > self._last:
            delete_snapshot(solver.param, solver.param.snapshot_prefix, self.iterations.pop(0))


def warn_of_a_full_disk(solver: Solver) -> None:
    """Say so before training when the disk has no room for a snapshot."""
    if not solver.param.snapshot:
        return
    size = sum(blob.data_memory.nbytes for blob in solver.net.params_list)
    size += sum(memory.nbytes for memory in solver.history.memories)
    folder = Path(solver.param.snapshot_prefix).parent
    free = shutil.disk_usage(folder).free
    if free < size:
        log.warning(
            "A snapshot takes about %.1f MB, but %s has only %.1f MB left.",
            size / 1e6, folder, free / 1e6,
        )  # fmt: skip
