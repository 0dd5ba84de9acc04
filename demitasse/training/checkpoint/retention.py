"""Retention of a run's snapshots: all or the last few, and the newest to resume from."""

import os
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from demitasse.core.log import get_logger
from demitasse.core.paths import is_file, real_path
from demitasse.errors import SnapshotError
from demitasse.io.proto import ResumeState
from demitasse.training.checkpoint.prefix_lock import PrefixLock
from demitasse.training.checkpoint.resume_check import file_digest
from demitasse.training.checkpoint.snapshot import snapshot_paths, weights_places, write_snapshot
from demitasse.training.checkpoint.state_file import read_state
from demitasse.training.context import TrainingContext

log = get_logger(__name__)


class SnapshotRetention:
    """Writes the snapshots of a run, and deletes the oldest ones."""

    def __init__(self, run: TrainingContext, keep_last: int | None) -> None:
        self._run, self._keep_last = run, keep_last
        self.iterations: list[int] = []  # of the snapshots that are kept, oldest first
        self.lock = PrefixLock()

    def write(
        self, iteration: int, step: int, resume: ResumeState, prefix: str | os.PathLike[str] | None
    ) -> tuple[Path, Path]:
        """Write a snapshot, and then delete the oldest if there are too many; return its files.

        Iterations of the run's snapshots are written to ``resume``. Snapshots with another prefix
        than ``snapshot_prefix`` are not counted, and never deleted.
        """
        place = self._run.param.snapshot_prefix if prefix is None else os.fspath(prefix)
        with self.lock.held(place):
            if prefix is None and self._keep_last is not None:
                resume.snapshot[:] = self._with(iteration)
            paths = write_snapshot(self._run, iteration, step, resume, place)
            if prefix is None:
                self.iterations = list(resume.snapshot)
                self._delete_old()
            return paths

    def note_remote(self, iteration: int) -> None:
        """Record a snapshot that another process has written, and deletes in time."""
        if self._keep_last is not None:
            self.iterations = self._with(iteration)[-self._keep_last :]

    def _with(self, iteration: int) -> list[int]:
        return [*(i for i in self.iterations if i != iteration), iteration]

    def resume(self, state: Path, iteration: int, kept: Iterable[int]) -> None:
        """Continue from a state; delete old snapshots that its run kept and did not delete."""
        param = self._run.param
        ours = snapshot_paths(param, param.snapshot_prefix, iteration)[1]
        same = real_path(ours) == real_path(state)  # else the files may belong to another run
        self.iterations = list(kept) if same else []
        if self._keep_last is not None and len(self.iterations) > self._keep_last:
            # the files of a run in another process stay
            with suppress(SnapshotError), self.lock.held(param.snapshot_prefix):
                self._delete_old()

    def _delete_old(self) -> None:
        param = self._run.param
        while self._keep_last is not None and len(self.iterations) > self._keep_last:
            weights, state = snapshot_paths(param, param.snapshot_prefix, self.iterations.pop(0))
            for path in (state, weights):  # a state never names a missing file
                try:
                    path.unlink(missing_ok=True)
                except OSError as error:
                    log.warning("The old snapshot %s cannot be deleted: %s", path, error.strerror)
                    break
                log.info("Deleted the old snapshot %s", path)


def warn_if_disk_full(run: TrainingContext) -> None:
    """Warn before training if the disk has no space for a snapshot."""
    param = run.param
    if not param.snapshot:
        return
    size = sum(blob.data_memory.nbytes for blob in run.net.structure.params_list)
    size += sum(memory.nbytes for memory in run.updater.history.memories)
    folder = Path(param.snapshot_prefix).parent
    free = shutil.disk_usage(folder).free
    if free < size:
        log.warning(
            "A snapshot needs about %.1f MB, and %s has %.1f MB left.",
            size / 1e6, folder, free / 1e6,
        )  # fmt: skip


def latest_snapshot(prefix: str) -> Path | None:
    """Return the state of the newest intact snapshot of ``snapshot_prefix``; None if there is none.

    A snapshot is intact if its state can be read, and its weights exist and are those that the
    state was written with.
    """
    begin = Path(f"{prefix}_iter_")
    name = re.compile(rf"{re.escape(begin.name)}(\d{{1,18}})\.solverstate(\.h5)?")
    states: list[tuple[int, Path]] = []
    with suppress(OSError):
        matches = ((name.fullmatch(path.name), path) for path in begin.parent.iterdir())
        states = [(int(match[1]), path) for match, path in matches if match]
    for _, path in sorted(states, reverse=True):
        defect = _defect(path)
        if not defect:
            return path
        log.warning("Not resumed from %s: %s", path, defect)
    return None


def _defect(path: Path) -> str:
    try:
        state = read_state(path)
    except SnapshotError as error:
        return error.message
    first, second = weights_places(path, state)
    weights = first if is_file(first) else second
    try:
        digest = file_digest(weights)
    except OSError as error:
        return f"its weights {weights} cannot be read ({error.strerror})"
    expected = state.resume.run.weights if state.resume is not None else b""
    changed = expected and expected != digest
    return "its weights are not the file that was written with the state" if changed else ""
