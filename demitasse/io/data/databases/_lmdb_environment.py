"""Opening LMDBs for writing, which is left to the LMDB library."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from demitasse.errors import DataError
from demitasse.io.data.databases._lmdb_file import LmdbFile
from demitasse.io.data.databases.database import what_is_there

if TYPE_CHECKING:
    import lmdb

__all__ = ["open_for_writing", "write_error"]

LOCK_SIZE = 8192
"""Bytes of a file of locks, as the library makes it for as many readers as it allows."""


def open_for_writing(path: Path, mode: Literal["write", "new"], map_size: int) -> lmdb.Environment:
    """Return an environment that can be written to.

    Raises:
        DataError: It cannot be opened; says what was found there.
        OSError: The system refuses to write, e.g. because the disk is full.
    """
    import lmdb

    if mode == "new" and path.exists():
        message = "exists already; remove it first or write somewhere else"
        raise DataError(message, str(path))
    if mode == "write" and not path.exists():
        raise DataError(what_is_there(path, "LMDB"), str(path))
    if (path / "data.mdb").exists():
        LmdbFile(path).close()  # the library would map a damaged file to memory, and die
    path.mkdir(parents=True, exist_ok=True)
    _reserve_locks(path / "lock.mdb")
    try:
        return lmdb.open(str(path), map_size=max(map_size, _size_of(path)))
    except lmdb.Error as error:
        raise write_error(error, path) from error


def _reserve_locks(path: Path) -> None:
    """Give a file of locks its place on the disk.

    The library makes it of nothing but a hole and maps it to memory. On a full disk the process
    would die of the first write there (SIGBUS), for no call is left that could fail.

    Raises:
        OSError: There is no room.
    """
    try:
        with path.open("ab") as file:
            file.write(bytes(max(0, LOCK_SIZE - file.tell())))
    except OSError as error:
        error.filename = str(path)  # a failed write names no file
        raise


def write_error(error: Exception, path: Path) -> OSError | DataError:
    """Return what the LMDB library means: the system refused something, or it is the database.

    Args:
        error: The library's error, which ends with the system's words for its own.
        path: The database.
    """
    for number in errno.errorcode:
        if str(error).endswith(os.strerror(number)):
            return OSError(number, os.strerror(number), str(path))
    return DataError(f"cannot be written: {error}", str(path))


def _size_of(folder: Path) -> int:
    file = folder / "data.mdb"
    return file.stat().st_size if file.exists() else 0
