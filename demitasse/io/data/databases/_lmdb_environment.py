"""Opening LMDBs for writing, through the LMDB library."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from demitasse.errors import DataError, ErrorCode
from demitasse.io.data.databases._lmdb_file import LmdbFile
from demitasse.io.data.databases.database import what_is_there

if TYPE_CHECKING:
    import lmdb

__all__ = ["open_for_writing", "write_error"]

LOCK_SIZE = 8192
"""Bytes of the lock file, as the library creates it for the default number of readers."""


def open_for_writing(path: Path, mode: Literal["write", "new"], map_size: int) -> lmdb.Environment:
    """Return a writable environment.

    Raises:
        DataError: The database cannot be opened; the message names what was found.
        OSError: The system refuses to write, e.g. the disk is full.
    """
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
    try:
        return lmdb.open(str(path), map_size=max(map_size, _size_of(path)))
    except lmdb.Error as error:
        raise write_error(error, path) from error


def _reserve_locks(path: Path) -> None:
    """Allocate the blocks of the lock file.

    The library creates a sparse file and maps it. On a full disk the first write to the mapping
    kills the process (SIGBUS), as no call can fail.

    Raises:
        OSError: The disk is full.
    """
    try:
        with path.open("ab") as file:
            file.write(bytes(max(0, LOCK_SIZE - file.tell())))
    except OSError as error:
        error.filename = str(path)  # failed writes name no file
        raise


def write_error(error: Exception, path: Path) -> OSError | DataError:
    """Return the exception for an error of the LMDB library: OSError or DataError.

    Args:
        error: Error of the library; system errors end with the text of ``os.strerror``.
        path: The database.
    """
    for number in errno.errorcode:
        if str(error).endswith(os.strerror(number)):
            return OSError(number, os.strerror(number), str(path))
    return DataError(f"cannot be written: {error}", str(path), code=ErrorCode.UNWRITABLE)


def _size_of(folder: Path) -> int:
    file = folder / "data.mdb"
    return file.stat().st_size if file.exists() else 0
