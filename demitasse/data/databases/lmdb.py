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
from pathlib import Path

from demitasse.data.databases._lmdb_environment import acquire, let_go
from demitasse.data.databases.database import Mode, printable
from demitasse.errors import ConfigError, DataError

__all__ = [
    "LmdbCursor",
    "LmdbDatabase",
    "LmdbTransaction",
    "open_database",
]

FIRST_MAP_SIZE = 1 << 24
"""Room a database that is written starts with, in bytes; it is doubled as often as needed."""


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

    def last_key(self) -> bytes | None:
        """Return the key of the last record, or None where there is none."""
        with self.shared.env.begin() as transaction, transaction.cursor() as cursor:
            return bytes(cursor.key()) if cursor.last() else None

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
            DataError: It cannot be written.
            OSError: The disk is full.
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
                if self._disk_is_full():  # LMDB may call that an input/output error
                    number = errno.ENOSPC
                    raise OSError(number, os.strerror(number), str(self._database.path)) from error
                raise DataError(str(error), str(self._database.path)) from error

    def _disk_is_full(self) -> bool:
        size = sum(len(key) + len(value) for key, value in self._pending)
        return shutil.disk_usage(self._database.path).free < 2 * size


def open_database(path: Path, mode: Mode) -> LmdbDatabase:
    """Open the LMDB at ``path``."""
    return LmdbDatabase(path, mode)
