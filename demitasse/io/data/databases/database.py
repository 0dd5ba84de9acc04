"""Databases of records: what the data layers and tools need of one, and how one is opened.

Source: Caffe, ``include/caffe/util/db.hpp``.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Literal, Protocol

from demitasse.core.paths import similar_file
from demitasse.core.text import suggestion
from demitasse.errors import ConfigError, DataError
from demitasse.io.data.databases.rooms import Rooms

__all__ = [
    "BACKENDS",
    "Cursor",
    "DamagedError",
    "Database",
    "Mode",
    "Raw",
    "Transaction",
    "open_db",
    "printable",
    "records",
    "what_is_there",
]

Raw = bytes | memoryview
"""The contents of a record as a database gives them."""

Mode = Literal["read", "write", "new"]
"""``read``, ``write`` (add to what is there) or ``new`` (refused when something is there)."""

BACKENDS = {
    "LMDB": "demitasse.io.data.databases.lmdb",
    "LEVELDB": "demitasse.io.data.databases.leveldb",
}
"""Backend of ``data_param`` -> the module whose ``open_database`` opens it."""


class DamagedError(ValueError):
    """A file does not hold what its format says."""


class Cursor(Protocol):
    """A place in a database, whose records are in the order of their keys' bytes."""

    def seek_to_first(self) -> None:
        """Go to the first record."""

    def next(self) -> None:
        """Go to the next record; beyond the last one the cursor is not valid."""

    def key(self) -> bytes:
        """Return the key of the current record."""

    def value(self) -> Raw:
        """Return the contents of the current record."""

    def take(self, count: int, rooms: Rooms) -> list[Raw]:
        """Return the contents of the next records, fewer at the end, and go behind them.

        Args:
            count: How many are wanted.
            rooms: Memory for them, if the database has use for it.
        """

    def valid(self) -> bool:
        """Whether there is a current record."""

    def close(self) -> None:
        """Let go of the database."""


class Transaction(Protocol):
    """Records that are written together."""

    def put(self, key: bytes, value: bytes) -> None:
        """Add a record, or replace the one of that key."""

    def commit(self) -> None:
        """Write what was put since the last commit."""


class Database(Protocol):
    """An open database."""

    path: Path

    def new_cursor(self) -> Cursor:
        """Return a cursor at the first record."""

    def new_transaction(self) -> Transaction:
        """Return a way to add records."""

    def last_key(self) -> bytes | None:
        """Return the key of the last record when it was opened, or None where there was none."""

    def close(self) -> None:
        """Close it; its cursors are dead then."""


def open_db(source: str | Path, backend: str = "LMDB", mode: Mode = "read") -> Database:
    """Open the database at ``source``.

    Args:
        source: Its folder (or, for an LMDB, its one file).
        backend: ``"LMDB"`` or ``"LEVELDB"``.
        mode: What it is opened for.

    Raises:
        ConfigError: There is no such backend, or it cannot do that.
        DataError: It cannot be opened; says what was found there.
    """
    if backend not in BACKENDS:
        near = suggestion(backend, BACKENDS)
        message = f"unknown database backend {backend!r}{near}; known are {', '.join(BACKENDS)}"
        raise ConfigError(message)
    path = Path(source)
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # the backend says what there is instead
    except (OSError, ValueError) as error:  # no folder can be called so
        message = f"there can be no database of this name: {error}"
        raise DataError(message, str(path)) from error
    database: Database = import_module(BACKENDS[backend]).open_database(path, mode)
    return database


def what_is_there(path: Path, wanted: str) -> str:
    """Say why ``path`` cannot be opened as a database of the backend ``wanted``."""
    if not path.exists():
        near = similar_file(path)
        return f"there is no such database (looked for in {Path.cwd()}){near}"
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
    """Yield (key, value) of every record from the first to the last."""
    cursor.seek_to_first()
    while cursor.valid():
        yield cursor.key(), cursor.value()
        cursor.next()


def printable(key: bytes) -> str:
    """Return a key as messages show it."""
    return key.decode("utf-8", "backslashreplace")
