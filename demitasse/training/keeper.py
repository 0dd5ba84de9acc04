"""Which snapshots of a run stay: all of them, or the last few."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from demitasse.core.log import get_logger
from demitasse.core.paths import real_path
from demitasse.io.proto import SolverParameter
from demitasse.net import Net
from demitasse.training.checkpoint import Checkpoint
from demitasse.training.history import History
from demitasse.training.snapshot import delete_snapshot, snapshot_paths, write_snapshot

__all__ = ["Keeper", "warn_of_a_full_disk"]

log = get_logger(__name__)


class Keeper:
    """Writes the snapshots of a run, and deletes those that need not be kept.

    Args:
        param: The solver's fields.
        last: How many snapshots to keep; None keeps all.

    Attributes:
        iterations: The iterations of the snapshots that this run has and keeps, oldest first.
    """

    def __init__(self, param: SolverParameter, last: int | None) -> None:
        self._param, self._last = param, last
        self.iterations: list[int] = []

    def write(
        self, checkpoint: Checkpoint, prefix: str | os.PathLike[str] | None
    ) -> tuple[Path, Path]:
        """Write a snapshot, and delete the oldest when there are too many.

        Args:
            checkpoint: The run; the iterations of its snapshots are noted in its ``resume``.
            prefix: How the names of the files begin; None takes ``snapshot_prefix``. Snapshots
                that are written elsewhere are not counted, and never deleted.

        Returns:
            The weights file and the state file.

        Raises:
            SnapshotError: It cannot be written; nothing is deleted.
        """
        if prefix is not None:
            return write_snapshot(checkpoint, os.fspath(prefix))
        kept = checkpoint.resume.snapshot
        if self._last is not None:
            kept[:] = [*(i for i in self.iterations if i != checkpoint.iter), checkpoint.iter]
        paths = write_snapshot(checkpoint, self._param.snapshot_prefix)
        self.iterations = list(kept)
        self._drop_old()
        return paths

    def note(self, iteration: int) -> None:
        """Take note of a snapshot that another process has written, and of what it deleted then."""
        self.iterations = [*(i for i in self.iterations if i != iteration), iteration]
        if self._last is not None:
            self.iterations = self.iterations[-self._last :]

    def resume(self, state: Path, iteration: int, kept: Iterable[int]) -> None:
        """Go on from a state, and delete what the run that wrote it did not come to delete.

        Args:
            state: The state file.
            iteration: Its iteration.
            kept: The iterations of the snapshots that its run kept.
        """
        ours = snapshot_paths(self._param, self._param.snapshot_prefix, iteration)[1]
        same = real_path(ours) == real_path(state)  # else the files may be another run's
        self.iterations = list(kept) if same else []
        self._drop_old()

    def _drop_old(self) -> None:
        while self._last is not None and len(self.iterations) > self._last:
            delete_snapshot(self._param, self._param.snapshot_prefix, self.iterations.pop(0))


def warn_of_a_full_disk(param: SolverParameter, net: Net, history: History) -> None:
    """Warn before training when the disk has no room for a snapshot.

    Args:
        param: The solver's fields.
        net: The net that is trained.
        history: What the solver remembers of each parameter.
    """
    if not param.snapshot:
        return
    size = sum(blob.data_memory.nbytes for blob in net.structure.params_list)
    size += sum(memory.nbytes for memory in history.memories)
    folder = Path(param.snapshot_prefix).parent
    free = shutil.disk_usage(folder).free
    if free < size:
        log.warning(
            "A snapshot takes about %.1f MB, but %s has only %.1f MB left.",
            size / 1e6, folder, free / 1e6,
        )  # fmt: skip
