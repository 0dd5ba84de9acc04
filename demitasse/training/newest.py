"""The newest snapshot that a run can be taken up from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from demitasse.core.log import get_logger
from demitasse.errors import SnapshotError
from demitasse.training.run_facts import file_digest
from demitasse.training.state_file import read_state

__all__ = ["newest_state"]

log = get_logger(__name__)


def newest_state(prefix: str) -> Path | None:
    """Return the newest whole snapshot's state; None where there is none.

    A snapshot is whole where its state can be read, and its weights are there and are those that
    the state was written with.

    Args:
        prefix: How the names of a run's snapshots begin: ``snapshot_prefix``.
    """
    for path in _states(Path(prefix)):
        reason = _reason_against(path)
        if not reason:
            return path
        log.warning("Not resumed from %s: %s", path, reason)
    return None


def _states(prefix: Path) -> Iterator[Path]:
    """Yield the states of a run, the newest first."""
    name = re.compile(rf"{re.escape(prefix.name)}_iter_(\d{{1,18}})\.solverstate(\.h5)?")
    try:
        found = [(name.fullmatch(path.name), path) for path in prefix.parent.iterdir()]
    except OSError:
        return
    numbered = [(int(match[1]), path) for match, path in found if match]
    yield from (path for _, path in sorted(numbered, reverse=True))


def _reason_against(path: Path) -> str:
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
    known = state.resume.run.weights if state.resume is not None else b""
    return "its weights are not those it was written with" if known and known != digest else ""
