"""LMDB: the database Caffe's data layers read most.

Reading is done by us, read-only and without the lock file, so that databases on read-only media and
network drives work and a damaged one is an error; do not write to a database while it is read.
Writing is done by the LMDB library.

Source: Caffe, ``src/caffe/util/db_lmdb.cpp``.
"""

from __future__ import annotations

import errno
import os
import shutil
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from demitasse.errors import ConfigError, DataError
from demitasse.io.data.databases._lmdb_environment import open_for_writing, write_error
from demitasse.io.data.databases._lmdb_file import LmdbFile
from demitasse.io.data.databases._lmdb_tree import Leaf, LmdbTree
from demitasse.io.data.databases.database import DamagedError, Mode, Raw, printable
from demitasse.io.data.databases.rooms import Rooms

if TYPE_CHECKING:
    import lmdb

__all__ = [
    "LmdbCursor",
    "LmdbDatabase",
    "LmdbTransaction",
    "open_database",
]

FIRST_MAP_SIZE = 1 << 24
"""Room a database that is written starts with, in bytes; it is doubled as often as needed."""

NO_LEAF = Leaf(memoryview(b""), 0, [], [])


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
        self._key = (os.getpid(), path.resolve())  # a forked child has its own
        self._open: LmdbFile | lmdb.Environment
        if mode == "read":
            self._open = LmdbFile(path)
            _need_whole(self._open, path)
        else:
            if any(other._key == self._key for other in list(_databases)):
                message = "is open in this process already; close it before writing to it"
                raise DataError(message, str(path))
            self._open = open_for_writing(path, mode, map_size)
        self._release = weakref.finalize(self, self._open.close)
        _databases.add(self)

    def __len__(self) -> int:
        if isinstance(self._open, LmdbFile):
            return self._open.meta.records
        return int(self._open.stat()["entries"])

    def new_cursor(self) -> LmdbCursor:
        """Return a cursor at the first record."""
        if isinstance(self._open, LmdbFile):
            return LmdbCursor(self, self._open)
        return LmdbDatabase(self.path).new_cursor()  # of what has been committed

    def new_transaction(self) -> LmdbTransaction:
        """Return a way to add records.

        Raises:
            ConfigError: The database was opened for reading.
        """
        if isinstance(self._open, LmdbFile):
            message = f"{self.path} was opened for reading; open it with mode 'write' to add to it"
            raise ConfigError(message)
        return LmdbTransaction(self.path, self._open)

    def last_key(self) -> bytes | None:
        """Return the key of the last record, or None where there is none."""
        if not isinstance(self._open, LmdbFile):
            return LmdbDatabase(self.path).last_key()  # of what has been committed
        try:
            return LmdbTree(self._open).last_key()
        except (DamagedError, OSError) as error:
            raise self._open.damaged(error) from error

    def close(self) -> None:
        """Close it; may be called twice."""
        self._release()
        _databases.discard(self)


def _need_whole(file: LmdbFile, path: Path) -> None:
    """Refuse a file whose end is missing, unless no record has anything there."""
    if not file.lacks:
        return
    try:
        LmdbTree(file).need_all()
    except (DamagedError, OSError) as error:
        file.close()
        message = f"the LMDB is cut short: {file.lacks}"
        raise DataError(message, str(path)) from error
    except BaseException:
        file.close()
        raise


_databases: weakref.WeakSet[LmdbDatabase] = weakref.WeakSet()
"""Those that are open."""


class LmdbCursor:
    """A place in an LMDB: a record of one of its leaf pages."""

    def __init__(self, database: LmdbDatabase, file: LmdbFile) -> None:
        self._database = database  # stays open as long as we live
        self._file, self._tree = file, LmdbTree(file)
        self._at = self._count = 0
        self.seek_to_first()

    def seek_to_first(self) -> None:
        """Go to the first record."""
        self._leaves = self._tree.leaves()
        self._next_leaf()

    def next(self) -> None:
        """Go to the next record."""
        self._at += 1
        if self._at >= self._count:
            self._next_leaf()

    def key(self) -> bytes:
        """Return the key of the current record."""
        self._need_record()
        return self._leaf.keys[self._at]

    def value(self) -> Raw:
        """Return the contents of the current record."""
        self._need_record()
        return self._contents(self._at + 1, Rooms())[0]

    def take(self, count: int, rooms: Rooms) -> list[Raw]:
        """Return the contents of the next records, fewer at the end, and go behind them."""
        taken: list[Raw] = []
        while len(taken) < count and self.valid():
            end = min(self._at + count - len(taken), self._count)
            taken += self._contents(end, rooms)
            self._at = end - 1
            self.next()
        return taken

    def valid(self) -> bool:
        """Whether there is a current record."""
        return self._at < self._count

    def close(self) -> None:
        """Let go of what was read."""
        self._leaves.close()
        self._go_to(NO_LEAF)

    def _contents(self, end: int, rooms: Rooms) -> list[Raw]:
        """Return the contents of the records of this leaf from the current one to ``end``."""
        try:
            return self._tree.contents(self._leaf, self._at, end, rooms)
        except (DamagedError, OSError) as error:
            raise self._file.damaged(error) from error

    def _need_record(self) -> None:
        if self._at >= self._count:
            message = "the cursor is beyond the last record"
            raise DataError(message, str(self._database.path))

    def _next_leaf(self) -> None:
        """Go to the first record of the next leaf."""
        self._go_to(NO_LEAF)  # should there be an error
        try:
            self._go_to(next(self._leaves, NO_LEAF))
        except (DamagedError, OSError) as error:
            raise self._file.damaged(error) from error

    def _go_to(self, leaf: Leaf) -> None:
        self._leaf, self._at, self._count = leaf, 0, len(leaf.keys)


class LmdbTransaction:
    """Records that are written together; the database is given more room when it is full."""

    def __init__(self, path: Path, env: lmdb.Environment) -> None:
        self._path, self._env = path, env
        self._pending: list[tuple[bytes, bytes]] = []
        self._longest_key = env.max_key_size()

    def put(self, key: bytes, value: bytes) -> None:
        """Add a record, or replace the one of that key.

        Raises:
            DataError: The key is empty or longer than LMDB takes.
        """
        if not 0 < len(key) <= self._longest_key:
            message = f"a key has 1 to {self._longest_key} bytes; this one has {len(key)}"
            raise DataError(message, str(self._path), printable(key))
        self._pending.append((key, value))

    def commit(self) -> None:
        """Write what was put since the last commit.

        Raises:
            DataError: The database is damaged.
            OSError: The system refuses to write, e.g. because the disk is full.
        """
        import lmdb

        env = self._env
        while self._pending:
            try:
                with env.begin(write=True) as transaction:
                    for key, value in self._pending:
                        transaction.put(key, value)
                self._pending.clear()
            except lmdb.MapFullError:
                env.set_mapsize(2 * env.info()["map_size"])
            except lmdb.Error as error:
                if self._disk_is_full():  # LMDB may call that an input/output error
                    number = errno.ENOSPC
                    raise OSError(number, os.strerror(number), str(self._path)) from error
                raise write_error(error, self._path) from error

    def _disk_is_full(self) -> bool:
        size = sum(len(key) + len(value) for key, value in self._pending)
        return shutil.disk_usage(self._path).free < 2 * size


def open_database(path: Path, mode: Mode) -> LmdbDatabase:
    """Open the LMDB at ``path``."""
    return LmdbDatabase(path, mode)
