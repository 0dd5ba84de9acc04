"""Interface of record databases, and ``open_db``.

Source: Caffe, ``include/caffe/util/db.hpp``.
"""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Literal, Protocol

from demitasse.core.paths import similar_file
from demitasse.core.text import suggestion
from demitasse.errors import ConfigError, DataError, ErrorCode


class BufferPool:
    """Buffers that records are read into, reused for the next batch.

    New memory would cost more time than the read: the system clears it first.
    """

    def __init__(self) -> None:
        self._buffers: list[memoryview] = []
        self._used = 0

    def clear(self) -> None:
        """Reuse all buffers; records in them become invalid."""
        self._used = 0

    def next(self, size: int) -> memoryview:
        """Return a buffer of ``size`` bytes."""
        if self._used == len(self._buffers):
            self._buffers.append(memoryview(b""))
        if len(self._buffers[self._used]) < size:
            self._buffers[self._used] = memoryview(bytearray(size))
        self._used += 1
        return self._buffers[self._used - 1][:size]


Raw = bytes | memoryview  # value of a record

Mode = Literal["read", "write", "new"]
"""``read``, ``write`` (append), or ``new`` (refuse an existing path)."""

BACKENDS = {
    "LMDB": "demitasse.io.data.databases.lmdb",
    "LEVELDB": "demitasse.io.data.databases.leveldb",
}
"""Backend of ``data_param`` -> module with its ``open_database``."""


DEFLATES = 1032  # largest ratio of DEFLATE compression: bytes per compressed byte

ROOM, GROWTH = 64 << 20, 50
"""Bytes that the values of a file may take in any case, and bytes per byte of the file."""


class DamagedError(ValueError):
    """A file contradicts its format."""


def check(valid: bool, fault: str) -> None:
    """Raise a DamagedError unless a file is valid."""
    if not valid:
        raise DamagedError(fault)


def memory_limit(size: int) -> int:
    """Return the bytes of memory that the values of a file of some bytes may take."""
    return max(ROOM, GROWTH * size)


def check_memory(what: str, needed: int, size: int) -> None:
    """Refuse values whose bytes exceed the limit of a file of ``size`` bytes."""
    if needed > memory_limit(size):
        message = (
            f"got {needed} bytes of {what} in a file of {size} bytes, expected at most {GROWTH} "
            "times as many; store the values uncompressed"
        )
        raise ValueError(message)


class Cursor(Protocol):
    """Position in a database; records are sorted by the bytes of their keys."""

    def seek_to_first(self) -> None:
        """Move to the first record."""

    def next(self) -> None:
        """Move to the next record; after the last record the cursor is invalid."""

    def key(self) -> bytes:
        """Return the key of the current record."""

    def value(self) -> Raw:
        """Return the value of the current record."""

    def take(self, count: int, buffers: BufferPool) -> list[Raw]:
        """Return the values of the next records, fewer at the end, and move behind them.

        A database may read the values into ``buffers``.
        """

    def valid(self) -> bool:
        """Return True if there is a current record."""

    def close(self) -> None:
        """Release the database."""


class Transaction(Protocol):
    """Records that are written together."""

    def put(self, key: bytes, value: bytes) -> None:
        """Add a record, or replace the record of the same key."""

    def commit(self) -> None:
        """Write the records put since the last commit."""


class Database(Protocol):
    """An open database."""

    path: Path

    def new_cursor(self) -> Cursor:
        """Return a cursor at the first record."""

    def new_transaction(self) -> Transaction:
        """Return a transaction that adds records."""

    def last_key(self) -> bytes | None:
        """Return the last key at opening time, or None without records."""

    def close(self) -> None:
        """Close the database; its cursors become invalid."""


def open_db(source: str | Path, backend: str = "LMDB", mode: Mode = "read") -> Database:
    """Open the database in a folder; for an LMDB also in its single file.

    ``backend`` is ``"LMDB"`` or ``"LEVELDB"``.

    Raises:
        ConfigError: The backend is unknown, or does not support the mode.
        DataError: The database cannot be opened; the message names what was found.
    """
    if backend not in BACKENDS:
        near = suggestion(backend, BACKENDS)
        message = f"unknown database backend {backend!r}{near}; expected {', '.join(BACKENDS)}"
        raise ConfigError(message, code=ErrorCode.UNKNOWN, field="backend", got=backend)
    path = Path(source)
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # the backend names what was found instead
    except (OSError, ValueError) as error:  # an impossible file name
        message = f"no database can have this name: {error}"
        raise DataError(message, str(path), code=ErrorCode.INVALID) from error
    database: Database = import_module(BACKENDS[backend]).open_database(path, mode)
    return database


def what_is_there(path: Path, wanted: str) -> str:
    """Return the reason why ``path`` is no database of the backend ``wanted``."""
    if not path.exists():
        near = similar_file(path)
        return f"there is no such database (relative to {Path.cwd()}){near}"
    marks = {"data.mdb": "LMDB", "CURRENT": "LEVELDB"}
    for mark, backend in marks.items():
        if backend != wanted and (path / mark).exists():
            return (
                f"this is not {wanted} but {backend}; write 'backend: {backend}' in data_param, "
                f"or give a tool --backend {backend.lower()}"
            )
    mark = next(file for file, backend in marks.items() if backend == wanted)
    return f"there is no {wanted} database here: the folder has no {mark}"


def records(cursor: Cursor) -> Iterator[tuple[bytes, Raw]]:
    """Yield (key, value) of every record, in key order."""
    cursor.seek_to_first()
    while cursor.valid():
        yield cursor.key(), cursor.value()
        cursor.next()


def printable(key: bytes) -> str:
    """Return a key as text, for messages."""
    return key.decode("utf-8", "backslashreplace")
