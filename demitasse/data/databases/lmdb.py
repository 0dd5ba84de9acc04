"""LMDB: the database Caffe's data layers read most.

Readers open the file read-only and without its lock file, so that databases on read-only media and
network drives work; do not write to a database while it is read.

Source: Caffe, ``src/caffe/util/db_lmdb.cpp``.
"""

from __future__ import annotations

import errno
import os
import shutil
import weakref
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import numpy as np

from demitasse.data.databases._lmdb_environment import acquire, let_go
from demitasse.data.databases.database import Mode, printable
from demitasse.data.databases.datum import array_to_datum
from demitasse.errors import ConfigError, DataError
from demitasse.proto import Datum

__all__ = [
    "LmdbCursor",
    "LmdbDatabase",
    "LmdbTransaction",
    "open_database",
    "write_database",
    "write_lmdb",
]

FIRST_MAP_SIZE = 1 << 24
"""Room a database that is written starts with, in bytes; it is doubled as often as needed."""

COMMIT_EVERY = 1000
"""Records that are written together."""


class LmdbDatabase:
    """An open LMDB. Any number of these may read one file at the same time.

    Args:
        path: The folder of the database, or its one file.
        mode: ``"read"``, ``"write"`` or ``"new"``.
        map_size: Room to start with when writing, in bytes.

    Raises:
        DataError: It cannot be opened; says what was found there.
    """

    def __init__(self, path: Path, mode: Mode = "read", map_size: int = FIRST_MAP_SIZE) -> None:
        self.path, self.mode = path, mode
        self.shared = acquire(path, mode, map_size)
        self._release = weakref.finalize(self, let_go, self.shared)

    def __len__(self) -> int:
        return int(self.shared.env.stat()["entries"])

    @property
    def map_size(self) -> int:
        """Room the database may grow into before it is given more, in bytes."""
        return int(self.shared.env.info()["map_size"])

    def new_cursor(self) -> LmdbCursor:
        """Return a cursor at the first record."""
        return LmdbCursor(self)

    def new_transaction(self) -> LmdbTransaction:
        """Return a way to add records.

        Raises:
            ConfigError: The database was opened for reading.
        """
        if self.mode == "read":
            message = f"{self.path} was opened for reading; open it with mode 'write' to add to it"
            raise ConfigError(message)
        return LmdbTransaction(self)

    def close(self) -> None:
        """Close it; the file stays open as long as others in this process read it."""
        self._release()


class LmdbCursor:
    """A place in an LMDB, inside one read transaction."""

    def __init__(self, database: LmdbDatabase) -> None:
        import lmdb

        self._database = database  # stays open as long as we live
        self._error = lmdb.Error
        try:
            self._transaction = database.shared.env.begin(buffers=True)
            self._cursor = self._transaction.cursor()
            self._valid = bool(self._cursor.first())
        except lmdb.Error as error:
            raise self._failed(error) from error

    def seek_to_first(self) -> None:
        """Go to the first record."""
        try:
            self._valid = self._cursor.first()
        except self._error as error:
            raise self._failed(error) from error

    def next(self) -> None:
        """Go to the next record."""
        try:
            self._valid = self._cursor.next()
        except self._error as error:
            raise self._failed(error) from error

    def key(self) -> bytes:
        """Return the key of the current record."""
        return bytes(self._cursor.key())

    def value(self) -> memoryview:
        """Return the contents of the current record, uncopied."""
        return self._cursor.value()

    def valid(self) -> bool:
        """Whether there is a current record."""
        return self._valid

    def close(self) -> None:
        """End the read transaction; what ``value`` gave is dead now."""
        self._cursor.close()
        self._transaction.abort()

    def _failed(self, error: Exception) -> DataError:
        return DataError(f"the LMDB is damaged: {error}", str(self._database.path))


class LmdbTransaction:
    """Records that are written together; the database is given more room when it is full."""

    def __init__(self, database: LmdbDatabase) -> None:
        self._database = database
        self._pending: list[tuple[bytes, bytes]] = []
        self._longest_key = database.shared.env.max_key_size()

    def put(self, key: bytes, value: bytes) -> None:
        """Add a record, or replace the one of that key.

        Raises:
            DataError: The key is empty or longer than LMDB takes.
        """
        if not 0 < len(key) <= self._longest_key:
            message = f"a key has 1 to {self._longest_key} bytes; this one has {len(key)}"
            raise DataError(message, str(self._database.path), printable(key))
        self._pending.append((key, value))

    def commit(self) -> None:
        """Write what was put since the last commit.

        Raises:
            OSError: The disk is full.
            DataError: It cannot be written for another reason.
        """
        import lmdb

        env = self._database.shared.env
        while self._pending:
            try:
                with env.begin(write=True) as transaction:
                    for key, value in self._pending:
                        transaction.put(key, value)
                self._pending.clear()
            except lmdb.MapFullError:
                env.set_mapsize(2 * self._database.map_size)
            except lmdb.Error as error:
                path = str(self._database.path)
                if os.strerror(errno.ENOSPC) in str(error):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path) from error
                raise DataError(str(error), path) from error


def open_database(path: Path, mode: Mode) -> LmdbDatabase:
    """Open the LMDB at ``path``."""
    return LmdbDatabase(path, mode)


def write_database(
    path: str | Path, records: Iterable[tuple[np.ndarray, int]], *, overwrite: bool = False
) -> int:
    """Write arrays and their labels as an LMDB, with the keys 00000000, 00000001, ...

    Args:
        path: The folder to make.
        records: Arrays (C, H, W), uint8 or float32, and labels.
        overwrite: Whether to replace what is there.

    Returns:
        How many records were written.

    Raises:
        DataError: There is something at ``path``, or it cannot be written.
    """
    numbered = (
        (b"%08d" % number, array_to_datum(array, label))
        for number, (array, label) in enumerate(records)
    )
    return write_lmdb(path, numbered, overwrite=overwrite)


def write_lmdb(
    path: str | Path, records: Iterable[tuple[bytes, Datum]], *, overwrite: bool = False
) -> int:
    """Write records as an LMDB; it appears at ``path`` only when it is complete.

    Args:
        path: The folder to make.
        records: Keys and records.
        overwrite: Whether to replace what is there.

    Returns:
        How many records were written.

    Raises:
        DataError: There is something at ``path``, or it cannot be written.
    """
    path = Path(path)
    _need_room(path, overwrite=overwrite)
    partial, old = (path.with_name(f".{path.name}.{os.getpid()}.{end}") for end in ("new", "old"))
    shutil.rmtree(partial, ignore_errors=True)
    try:
        count = _write(partial, records)
        if path.exists():
            path.rename(old)
        partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
    return count


def _need_room(path: Path, *, overwrite: bool) -> None:
    """Refuse to write where something is that may not be, or should not be, replaced."""
    if not path.exists():
        return
    if not overwrite:
        message = "exists already; remove it first, allow it to be overwritten or write elsewhere"
        raise DataError(message, str(path))
    if not path.is_dir() or {file.name for file in path.iterdir()} - {"data.mdb", "lock.mdb"}:
        message = "is not a folder with nothing but an LMDB in it, so it is not overwritten"
        raise DataError(message, str(path))


def _write(path: Path, records: Iterable[tuple[bytes, Datum]]) -> int:
    count = 0
    with closing(LmdbDatabase(path, "new")) as database:
        transaction = database.new_transaction()
        for key, datum in records:
            transaction.put(key, datum.SerializeToString())
            count += 1
            if count % COMMIT_EVERY == 0:
                transaction.commit()
        transaction.commit()
    return count
