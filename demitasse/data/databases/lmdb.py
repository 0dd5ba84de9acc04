"""LMDB: the database Caffe's data layers read most.

Reading is done by us, read-only and without the lock file, so that databases on read-only media and
network drives work and a damaged one is an error; do not write to a database while it is read.
Writing is done by the LMDB library.

Source: Caffe, ``src/caffe/util/db_lmdb.cpp``.
"""

from __future__ import annotations

import os
import shutil
import weakref
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from demitasse.data.databases._lmdb_environment import open_for_writing
from demitasse.data.databases._lmdb_file import LmdbFile
from demitasse.data.databases._lmdb_tree import Leaf, LmdbTree
from demitasse.data.databases.database import DamagedError, Mode, Raw, printable
from demitasse.data.databases.datum import array_to_datum
from demitasse.errors import ConfigError, DataError
from demitasse.proto import Datum

if TYPE_CHECKING:
    import lmdb

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

    def close(self) -> None:
        """Close it; may be called twice."""
        self._release()
        _databases.discard(self)


_databases: weakref.WeakSet[LmdbDatabase] = weakref.WeakSet()
"""Those that are open."""


class LmdbCursor:
    """A place in an LMDB: a record of one of its leaf pages."""

    def __init__(self, database: LmdbDatabase, file: LmdbFile) -> None:
        self._database = database  # stays open as long as we live
        self._file, self._tree = file, LmdbTree(file)
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
        try:
            return self._tree.contents(self._leaf, self._at)
        except (DamagedError, OSError) as error:
            raise self._file.damaged(error) from error

    def valid(self) -> bool:
        """Whether there is a current record."""
        return self._at < self._count

    def close(self) -> None:
        """Let go of what was read."""
        self._leaves.close()
        self._go_to(NO_LEAF)

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
            DataError: It cannot be written, e.g. because the disk is full.
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
                raise DataError(str(error), str(self._path)) from error


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
