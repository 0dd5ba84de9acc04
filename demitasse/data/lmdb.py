"""LMDB: the database Caffe's data layers read most.

Readers open the file read-only and without its lock file, so that databases on read-only media and
network drives work; do not write to a database while it is read.

Source: Caffe, ``src/caffe/util/db_lmdb.cpp``.
"""

from __future__ import annotations

import os
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from demitasse.data.db import Mode, printable
from demitasse.errors import ConfigError, DataError

if TYPE_CHECKING:
    import lmdb

__all__ = ["LmdbCursor", "LmdbDatabase", "LmdbTransaction", "open_database"]

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
        self.shared = _acquire(path, mode, map_size)
        self._release = weakref.finalize(self, _let_go, self.shared)

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
            DataError: It cannot be written, e.g. because the disk is full.
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
                raise DataError(str(error), str(self._database.path)) from error


def open_database(path: Path, mode: Mode) -> LmdbDatabase:
    """Open the LMDB at ``path``."""
    return LmdbDatabase(path, mode)


# -- one environment per file and process ------------------------------------------------------


class _Shared:
    """An LMDB environment and how many use it: the library refuses to open a file twice."""

    def __init__(self, env: lmdb.Environment, key: tuple[int, Path]) -> None:
        self.env, self.key, self.users = env, key, 1


_lock = threading.Lock()
_open: dict[tuple[int, Path], _Shared] = {}


def _acquire(path: Path, mode: Mode, map_size: int) -> _Shared:
    key = (os.getpid(), path.resolve())  # a forked child must not use its parent's
    with _lock:
        shared = _open.get(key)
        if shared is None:
            env = (
                _open_for_reading(path)
                if mode == "read"
                else _open_for_writing(path, mode, map_size)
            )
            shared = _open[key] = _Shared(env, key)
        elif mode == "read":
            shared.users += 1
        else:
            message = "is open in this process already; close it before writing to it"
            raise DataError(message, str(path))
        return shared


def _let_go(shared: _Shared) -> None:
    with _lock:
        shared.users -= 1
        if not shared.users:
            del _open[shared.key]
            shared.env.close()


def _open_for_reading(path: Path) -> lmdb.Environment:
    import lmdb

    file = path / "data.mdb" if path.is_dir() else path
    if not file.exists():
        raise DataError(_what_is_there(path), str(path))
    try:
        env = lmdb.open(str(path), subdir=path.is_dir(), readonly=True, lock=False, create=False)
    except (lmdb.Error, OSError) as error:
        message = f"cannot be opened as an LMDB: {error}"
        raise DataError(message, str(path)) from error
    # Reading beyond the end of a mapped file would kill the process.
    needed = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    found = file.stat().st_size
    if found < needed:
        env.close()
        message = f"the LMDB is cut short: it says it has {needed} bytes, the file has {found}"
        raise DataError(message, str(path))
    return env


def _what_is_there(path: Path) -> str:
    if not path.exists():
        return f"there is no such database (looked for in {Path.cwd()})"
    if (path / "CURRENT").exists():
        return "this is a LevelDB, not an LMDB; write 'backend: LEVELDB'"
    return "there is no LMDB in this folder: it has no data.mdb"


def _open_for_writing(path: Path, mode: Mode, map_size: int) -> lmdb.Environment:
    import lmdb

    if mode == "new" and path.exists():
        message = "exists already; remove it first or write somewhere else"
        raise DataError(message, str(path))
    if mode == "write" and not path.exists():
        raise DataError(_what_is_there(path), str(path))
    try:
        path.mkdir(parents=True, exist_ok=True)
        return lmdb.open(str(path), map_size=max(map_size, _size_of(path)))
    except (lmdb.Error, OSError) as error:
        message = f"cannot be opened for writing: {error}"
        raise DataError(message, str(path)) from error


def _size_of(folder: Path) -> int:
    file = folder / "data.mdb"
    return file.stat().st_size if file.exists() else 0
