"""Retention of a run's snapshots: all or the last few, and the newest to resume from."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from demitasse.core.log import get_logger
from demitasse.core.paths import real_path
from demitasse.errors import SnapshotError
from demitasse.io.proto import SolverParameter
from demitasse.net import Net
from demitasse.training.checkpoint.prefix_lock import PrefixLock
from demitasse.training.checkpoint.resume_check import file_digest
from demitasse.training.checkpoint.snapshot import (
    Checkpoint,
    delete_snapshot,
    snapshot_paths,
    write_snapshot,
)
from demitasse.training.checkpoint.state_file import read_state
from demitasse.training.updater import History

log = get_logger(__name__)


class SnapshotRetention:
    """Writes the snapshots of a run, and deletes the oldest ones.

    Args:
        param: The solver's fields.
        keep_last: Number of snapshots to keep; None keeps all.

    Attributes:
        iterations: Iterations of the snapshots that are kept, oldest first.
        lock: Lock of the prefix.
    """

    def __init__(self, param: SolverParameter, keep_last: int | None) -> None:
        self._param, self._keep_last = param, keep_last
        self.iterations: list[int] = []
        self.lock = PrefixLock()

    def write(
        self, checkpoint: Checkpoint, prefix: str | os.PathLike[str] | None
    ) -> tuple[Path, Path]:
        """Write a snapshot, and delete the oldest if there are too many.

        Args:
            checkpoint: The run; iterations of its snapshots are written to its ``resume``.
            prefix: Beginning of the names of the files; None is ``snapshot_prefix``. Snapshots
                with another prefix are not counted, and never deleted.

        Returns:
            The weights file and the state file.

        Raises:
            SnapshotError: The snapshot cannot be written; nothing is deleted.
        """
        own = self._param.snapshot_prefix
        with self.lock.held(own if prefix is None else os.fspath(prefix)):
            if prefix is not None:
                return write_snapshot(checkpoint, os.fspath(prefix))
            return self._write_own(checkpoint)

    def _write_own(self, checkpoint: Checkpoint) -> tuple[Path, Path]:
        kept = checkpoint.resume.snapshot
        if self._keep_last is not None:
            kept[:] = [*(i for i in self.iterations if i != checkpoint.iter), checkpoint.iter]
        paths = write_snapshot(checkpoint, self._param.snapshot_prefix)
        self.iterations = list(kept)
        self._delete_old()
        return paths

    def note_remote(self, iteration: int) -> None:
        """Record a snapshot that another process has written, and deletes in time."""
        self.iterations = [*(i for i in self.iterations if i != iteration), iteration]
        if self._keep_last is not None:
            self.iterations = self.iterations[-self._keep_last :]

    def resume(self, state: Path, iteration: int, kept: Iterable[int]) -> None:
        """Continue from a state; delete old snapshots that its run did not delete any more.

        Args:
            state: The state file.
            iteration: Iteration of the state.
            kept: Iterations of the snapshots that its run kept.
        """
        ours = snapshot_paths(self._param, self._param.snapshot_prefix, iteration)[1]
        same = real_path(ours) == real_path(state)  # else the files may belong to another run
        self.iterations = list(kept) if same else []
        if self._keep_last is not None and len(self.iterations) > self._keep_last:
            own = self._param.snapshot_prefix
            # the files of a run in another process stay
            with suppress(SnapshotError), self.lock.held(own):
                self._delete_old()

    def _delete_old(self) -> None:
        while self._keep_last is not None and len(self.iterations) > self._keep_last:
            delete_snapshot(self._param, self._param.snapshot_prefix, self.iterations.pop(0))


def warn_if_disk_full(param: SolverParameter, net: Net, history: History) -> None:
    """Warn before training if the disk has no space for a snapshot.

    Args:
        param: The solver's fields.
        net: The training net.
        history: History of each parameter.
    """
    if not param.snapshot:
        return
    size = sum(blob.data_memory.nbytes for blob in net.structure.params_list)
    size += sum(memory.nbytes for memory in history.memories)
    folder = Path(param.snapshot_prefix).parent
    free = shutil.disk_usage(folder).free
    if free < size:
        log.warning(
            "A snapshot needs about %.1f MB, and %s has %.1f MB left.",
            size / 1e6, folder, free / 1e6,
        )  # fmt: skip


def latest_snapshot(prefix: str) -> Path | None:
    """Return the state of the newest intact snapshot; None if there is none.

    A snapshot is intact if its state can be read, and its weights exist and are those that the
    state was written with.

    Args:
        prefix: Beginning of the names of a run's snapshots: ``snapshot_prefix``.
    """
    for path in _states(Path(prefix)):
        defect = _defect(path)
        if not defect:
            return path
        log.warning("Not resumed from %s: %s", path, defect)
    return None


def _states(prefix: Path) -> Iterator[Path]:
    """Yield the states of a run, the newest first."""
    name = re.compile(rf"{re.escape(prefix.name)}_iter_(\d{{1,18}})\.solverstate(\.h5)?")
    try:
        files = [(name.fullmatch(path.name), path) for path in prefix.parent.iterdir()]
    except OSError:
        return
    numbered = [(int(match[1]), path) for match, path in files if match]
    yield from (path for _, path in sorted(numbered, reverse=True))


def _defect(path: Path) -> str:
    try:
        state = read_state(path)
    except SnapshotError as error:
        return error.message
    weights = Path(state.learned_net)
    if not weights.is_file():
        weights = path.parent / weights.name
    try:
        digest = file_digest(weights)
    except OSError as error:
        return f"its weights {weights} cannot be read ({error.strerror})"
    expected = state.resume.run.weights if state.resume is not None else b""
    changed = expected and expected != digest
    return "its weights are not the file that was written with the state" if changed else ""
