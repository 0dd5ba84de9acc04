"""Databases that appear under their name only when they are complete."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
from google.protobuf.message import Message

from demitasse.core.atomic import atomic_write, partial_name, put_in_place
from demitasse.core.paths import read_bytes, real_path
from demitasse.errors import DataError
from demitasse.io.data.databases.database import Database, Mode, open_db
from demitasse.io.data.databases.datum import array_to_datum

__all__ = ["Records", "new_database", "resumable_database", "write_database", "write_records"]

COMMIT_EVERY = 1000
"""Records that are written together."""

SETTINGS = "settings.json"
"""File beside an incomplete database: what it is made of, and how."""


def write_database(
    path: str | Path,
    records: Iterable[tuple[np.ndarray, int]],
    *,
    overwrite: bool = False,
    backend: str = "LMDB",
) -> int:
    """Write arrays and their labels as a database, with the keys 00000000, 00000001, ...

    Args:
        path: The folder to make.
        records: Arrays (C, H, W), uint8 or float32, and labels.
        overwrite: Whether to replace what is there.
        backend: ``"LMDB"`` or ``"LEVELDB"``.

    Returns:
        How many records were written.

    Raises:
        ConfigError: There is no such backend.
        DataError: There is something at ``path``, or it cannot be written.
        OSError: It cannot be written, e.g. because the disk is full.
    """
    numbered = (
        (b"%08d" % number, array_to_datum(array, label))
        for number, (array, label) in enumerate(records)
    )
    return write_records(path, numbered, overwrite=overwrite, backend=backend)


def write_records(
    path: str | Path,
    records: Iterable[tuple[bytes, Message]],
    *,
    overwrite: bool = False,
    backend: str = "LMDB",
) -> int:
    """Write records as a database; it appears at ``path`` only when it is complete.

    Args:
        path: The folder to make.
        records: Keys and records.
        overwrite: Whether to replace what is there.
        backend: ``"LMDB"`` or ``"LEVELDB"``.

    Returns:
        How many records were written.

    Raises:
        ConfigError: There is no such backend.
        DataError: There is something at ``path``, or it cannot be written.
        OSError: It cannot be written, e.g. because the disk is full.
    """
    with new_database(Path(path), backend, overwrite=overwrite) as database:
        written = Records(database)
        for key, datum in records:
            written.add(key, datum)
        written.commit()
    return written.count


class Records:
    """Puts records into a database, and commits from time to time.

    Attributes:
        count: How many there were.
    """

    def __init__(self, database: Database) -> None:
        self._transaction = database.new_transaction()
        self.count = 0

    def add(self, key: bytes, record: Message) -> bool:
        """Add a record; return whether it was committed, and all before it."""
        self._transaction.put(key, record.SerializeToString())
        self.count += 1
        if self.count % COMMIT_EVERY:
            return False
        self.commit()
        return True

    def commit(self) -> None:
        """Write what was added since the last commit."""
        self._transaction.commit()


@contextmanager
def new_database(path: Path, backend: str, *, overwrite: bool = False) -> Iterator[Database]:
    """Open a database for writing that appears at ``path`` when the block ends well.

    When the block raises, nothing is left of it.

    Args:
        path: The folder to make.
        backend: ``"LMDB"`` or ``"LEVELDB"``.
        overwrite: Whether to replace what is at ``path``.

    Yields:
        The database, empty.

    Raises:
        ConfigError: There is no such backend.
        DataError: There is something at ``path``, or it cannot be written.
        OSError: It cannot be written, e.g. because the disk is full.
    """
    _need_room(path, overwrite=overwrite)
    path = _followed(path)
    partial = partial_name(path)
    try:
        with closing(open_db(partial, backend, "new")) as database:
            yield database
        put_in_place(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def resumable_database(
    path: Path,
    backend: str,
    settings: Mapping[str, object],
    *,
    overwrite: bool = False,
    resume: bool = False,
) -> Iterator[Database]:
    """Open a database for writing that appears at ``path`` when the block ends well.

    When the block raises, or the process dies, what was committed stays in ``.NAME.partial`` beside
    it, and a later call with ``resume`` goes on there.

    Args:
        path: The folder to make.
        backend: ``"LMDB"`` or ``"LEVELDB"``.
        settings: What the records depend on; a call that goes on must be given the same.
        overwrite: Whether to replace what is at ``path``.
        resume: Whether to go on with what an earlier call left, if it left anything.

    Yields:
        The database, empty or with what is there.

    Raises:
        ConfigError: There is no such backend.
        DataError: There is something at ``path``, or what an earlier call left was made otherwise.
        OSError: It cannot be written, e.g. because the disk is full.
    """
    _need_room(path, overwrite=overwrite)
    path = _followed(path)
    folder = path.with_name(f".{path.name}.partial")
    settings = json.loads(json.dumps({**settings, "backend": backend}))
    begun = resume and (folder / SETTINGS).exists()
    if begun:
        _need_same(settings, folder)
    else:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    mode: Mode = "write" if begun else "new"
    with closing(open_db(folder / "database", backend, mode)) as database:
        if not begun:  # from here on there is something to go on with
            with atomic_write(folder / SETTINGS) as file:
                file.write(json.dumps(settings).encode())
        yield database
    put_in_place(folder / "database", path)
    shutil.rmtree(folder, ignore_errors=True)


def _need_same(settings: Mapping[str, object], folder: Path) -> None:
    """Refuse to go on with a database that was begun with other settings."""
    try:
        before = dict(json.loads(read_bytes(folder / SETTINGS)))
    except (OSError, RecursionError, TypeError, ValueError) as error:
        message = f"what is here cannot be gone on with: {error}; begin anew, without resume"
        raise DataError(message, str(folder)) from error
    others = [name for name, value in settings.items() if before.get(name) != value]
    if others:
        message = (
            f"was begun with another {', '.join(others)}; go on with what it was begun with, or "
            "begin anew, without resume"
        )
        raise DataError(message, str(folder))


def _followed(path: Path) -> Path:
    """Return what a link leads to, so that it keeps leading there."""
    return real_path(path) if path.is_symlink() else path


def _need_room(path: Path, *, overwrite: bool) -> None:
    """Refuse to write where something is that may not be, or should not be, replaced."""
    if not path.exists():
        return
    if not overwrite:
        message = "exists already; remove it first, allow it to be overwritten or write elsewhere"
        raise DataError(message, str(path))
    if not path.is_dir() or not all(_of_a_database(file.name) for file in path.iterdir()):
        message = "is not a folder with nothing but a database in it, so it is not overwritten"
        raise DataError(message, str(path))


def _of_a_database(name: str) -> bool:
    known = {"data.mdb", "lock.mdb", "CURRENT", "LOCK", "LOG", "LOG.old"}
    return name in known or name.startswith("MANIFEST-") or name.endswith((".ldb", ".sst", ".log"))
