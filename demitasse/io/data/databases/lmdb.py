"""LMDB, the database that Caffe's data layers use most.

Reading needs neither the LMDB library nor the lock file: databases on read-only media and network
drives work, and a damaged database raises an error. Do not write to a database while it is read.
Writing uses the LMDB library, which maps the file into memory: another process that cuts the file
short meanwhile ends this process (SIGBUS), which no check can prevent. A database is therefore
written in a folder that is private to the user.

Source: Caffe, ``src/caffe/util/db_lmdb.cpp``.
"""

from __future__ import annotations

import errno
import os
import shutil
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from demitasse.errors import ConfigError, DataError, ErrorCode
from demitasse.io.data.databases._lmdb_reader import Leaf, LmdbFile, LmdbTree
from demitasse.io.data.databases.database import (
    BufferPool,
    DamagedError,
    Mode,
    Raw,
    printable,
    what_is_there,
)

if TYPE_CHECKING:
    import lmdb

LOCK_SIZE = 8192
"""Bytes of the lock file, as the library creates it for the default number of readers."""


FIRST_MAP_SIZE = 1 << 24
"""Initial map size of a database opened for writing, in bytes; doubled when full."""


def _open_for_writing(path: Path, mode: Literal["write", "new"]) -> lmdb.Environment:
    """Return a writable environment."""
    import lmdb

    if mode == "new" and path.exists():
        message = "exists already; remove it first or write elsewhere"
        raise DataError(message, str(path), code=ErrorCode.EXISTS)
    if mode == "write" and not path.exists():
        raise DataError(what_is_there(path, "LMDB"), str(path), code=ErrorCode.NOT_FOUND)
    if (path / "data.mdb").exists():
        LmdbFile(path).close()  # validates: the library crashes on damaged files
    path.mkdir(parents=True, exist_ok=True)
    _reserve_locks(path / "lock.mdb")
    file = path / "data.mdb"
    try:
        size = file.stat().st_size if file.exists() else 0
        return lmdb.open(str(path), map_size=max(FIRST_MAP_SIZE, size))
    except (lmdb.Error, UnicodeEncodeError) as error:  # the library takes names in UTF-8 only
        raise _write_error(error, path) from error


def _reserve_locks(path: Path) -> None:
    """Allocate the blocks of the lock file; an OSError if the disk is full.

    The library creates a sparse file and maps it. On a full disk the first write to the mapping
    kills the process (SIGBUS), as no call can fail.
    """
    try:
        with path.open("ab") as file:
            file.write(bytes(max(0, LOCK_SIZE - file.tell())))
    except OSError as error:
        error.filename = str(path)  # failed writes name no file
        raise


def _write_error(error: Exception, path: Path) -> OSError | DataError:
    """Return an error of the LMDB library as OSError (by the text of ``strerror``) or DataError."""
    for number in errno.errorcode:
        if str(error).endswith(os.strerror(number)):
            return OSError(number, os.strerror(number), str(path))
    return DataError(f"cannot be written: {error}", str(path), code=ErrorCode.UNWRITABLE)


NO_LEAF = Leaf(memoryview(b""), 0, [], [])


class LmdbDatabase:
    """An open LMDB; several objects may read one file concurrently."""

    def __init__(self, path: Path, mode: Mode = "read") -> None:
        self.path = path
        self._key = (os.getpid(), path.resolve())  # differs in a forked child
        self._open: LmdbFile | lmdb.Environment
        if mode == "read":
            self._open = LmdbFile(path)
            _need_whole(self._open, path)
        else:
            others = [ref() for ref in _databases.valuerefs()]  # other threads may open databases
            if any(other is not None and other._key == self._key for other in others):
                message = "is open in this process already; close it before writing to it"
                raise DataError(message, str(path), code=ErrorCode.BAD_STATE)
            self._open = _open_for_writing(path, mode)
        self._release = weakref.finalize(self, self._open.close)
        _databases[id(self)] = self

    def __len__(self) -> int:
        if isinstance(self._open, LmdbFile):
            return self._open.meta.records
        return int(self._open.stat()["entries"])

    def new_cursor(self) -> LmdbCursor:
        if isinstance(self._open, LmdbFile):
            return LmdbCursor(self, self._open)
        return LmdbDatabase(self.path).new_cursor()  # reads committed records

    def new_transaction(self) -> LmdbTransaction:
        if isinstance(self._open, LmdbFile):
            message = f"{self.path} was opened for reading; open it with mode 'write'"
            raise ConfigError(message, code=ErrorCode.READ_ONLY, field="mode", file=str(self.path))
        return LmdbTransaction(self.path, self._open)

    def last_key(self) -> bytes | None:
        if not isinstance(self._open, LmdbFile):
            return LmdbDatabase(self.path).last_key()  # reads committed records
        try:
            return LmdbTree(self._open).last_key()
        except (DamagedError, OSError) as error:
            raise self._open.damaged(error) from error

    def close(self) -> None:
        """Close the database; may be called twice."""
        self._release()
        _databases.pop(id(self), None)


def _need_whole(file: LmdbFile, path: Path) -> None:
    """Refuse a truncated file, unless no record lies in its missing pages."""
    if not file.lacks:
        return
    try:
        LmdbTree(file).need_all()
    except (DamagedError, OSError) as error:
        file.close()
        message = f"the LMDB is truncated: {file.lacks}"
        raise DataError(message, str(path), code=ErrorCode.TRUNCATED) from error
    except BaseException:
        file.close()
        raise


_databases: weakref.WeakValueDictionary[int, LmdbDatabase] = weakref.WeakValueDictionary()
"""Open databases of this process, by identity."""


class LmdbCursor:
    """Position in an LMDB: a record of a leaf page."""

    def __init__(self, database: LmdbDatabase, file: LmdbFile) -> None:
        self._database = database  # keeps the file open
        self._file, self._tree = file, LmdbTree(file)
        self._at = self._count = 0
        self.seek_to_first()

    def seek_to_first(self) -> None:
        self._leaves = self._tree.leaves()
        self._next_leaf()

    def next(self) -> None:
        self._at += 1
        if self._at >= self._count:
            self._next_leaf()

    def key(self) -> bytes:
        self._need_record()
        return self._leaf.keys[self._at]

    def value(self) -> Raw:
        self._need_record()
        return self._contents(self._at + 1, BufferPool())[0]

    def take(self, count: int, buffers: BufferPool) -> list[Raw]:
        taken: list[Raw] = []
        while len(taken) < count and self.valid():
            end = min(self._at + count - len(taken), self._count)
            taken += self._contents(end, buffers)
            self._at = end - 1
            self.next()
        return taken

    def valid(self) -> bool:
        return self._at < self._count

    def close(self) -> None:
        """Release the read buffers."""
        self._leaves.close()
        self._go_to(NO_LEAF)

    def _contents(self, end: int, buffers: BufferPool) -> list[Raw]:
        """Return the values of this leaf's records from the current one to ``end``."""
        try:
            return self._tree.contents(self._leaf, self._at, end, buffers)
        except (DamagedError, OSError) as error:
            raise self._file.damaged(error) from error

    def _need_record(self) -> None:
        if self._at >= self._count:
            message = "the cursor is behind the last record"
            raise DataError(message, str(self._database.path), code=ErrorCode.OUT_OF_RANGE)

    def _next_leaf(self) -> None:
        """Move to the first record of the next leaf."""
        self._go_to(NO_LEAF)  # remains if the next leaf is damaged
        try:
            self._go_to(next(self._leaves, NO_LEAF))
        except (DamagedError, OSError) as error:
            raise self._file.damaged(error) from error

    def _go_to(self, leaf: Leaf) -> None:
        self._leaf, self._at, self._count = leaf, 0, len(leaf.keys)


class LmdbTransaction:
    """Records that are written together; the map size grows when the database is full."""

    def __init__(self, path: Path, env: lmdb.Environment) -> None:
        self._path, self._env = path, env
        self._pending: list[tuple[bytes, bytes]] = []
        self._longest_key = env.max_key_size()

    def put(self, key: bytes, value: bytes) -> None:
        got, expected, code = len(key), self._longest_key, ErrorCode.OUT_OF_RANGE
        if not 0 < got <= expected:
            message = f"got a key of {got} bytes, expected 1 to {expected}"
            name, path = printable(key), str(self._path)
            raise DataError(message, path, name, code=code, got=got, expected=expected)
        self._pending.append((key, value))

    def commit(self) -> None:
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
                size = sum(len(key) + len(value) for key, value in self._pending)
                if shutil.disk_usage(self._path).free < 2 * size:  # LMDB may report EIO instead
                    number = errno.ENOSPC
                    raise OSError(number, os.strerror(number), str(self._path)) from error
                raise _write_error(error, self._path) from error


open_database = LmdbDatabase
