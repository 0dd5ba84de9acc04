"""The file of an LMDB, read a page at a time.

It is read with ordinary reads: a file that is mapped to memory and cut short by another program
would end the process.
"""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

from demitasse.core.paths import regular_file
from demitasse.core.threads import Uninterrupted
from demitasse.errors import DataError
from demitasse.io.data.databases._lmdb_pages import (
    FIRST_PAGE,
    META_SIZE,
    Meta,
)
from demitasse.io.data.databases.database import DamagedError, what_is_there

__all__ = ["LmdbFile"]


class LmdbFile:
    """An LMDB's file, as it was when it was opened. Any number of threads may read it.

    Args:
        path: The folder of the database, or its one file.

    Attributes:
        meta: Of the newest transaction; its last page is one that the file has.
        lacks: What is missing at the end of the file, in words; "" for nothing. It may be pages
            that were given back before they were written, where records were replaced or deleted.

    Raises:
        DataError: It cannot be opened; says what was found there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        file = path / "data.mdb" if path.is_dir() else path
        if not file.exists():
            raise DataError(what_is_there(path, "LMDB"), str(path))
        try:
            with Uninterrupted():  # between the opening and its having a name
                self._file = regular_file(file).open("rb", buffering=0)
        except OSError as error:
            message = f"cannot be opened as an LMDB: {error}"
            raise DataError(message, str(path)) from error
        self._lock = threading.Lock()
        self._when = self._size_and_time()
        try:
            self.meta = self._newest_meta()
        except (DamagedError, OSError) as error:
            self.close()
            message = f"cannot be opened as an LMDB: {error}"
            raise DataError(message, str(path)) from error
        self.lacks = ""
        needed = (self.meta.last_page + 1) * self.meta.page_size
        found = self._when[0]
        if found < needed:
            self.lacks = f"it says it has {needed} bytes, the file has {found}"
            self.meta = replace(self.meta, last_page=found // self.meta.page_size - 1)

    def __del__(self) -> None:
        """Close it where an interrupt came before anybody else could."""
        if hasattr(self, "_file"):
            self._file.close()

    def read(self, number: int, size: int) -> bytes:
        """Return bytes from a page on.

        Args:
            number: Of the page.
            size: How many bytes.

        Raises:
            DamagedError: There are not so many.
            DataError: The file was changed since it was opened.
        """
        self.need(number, size)
        content = self._read_at(number * self.meta.page_size, size)
        self._check(number, size, len(content))
        return content

    def read_into(self, number: int, room: memoryview) -> None:
        """Read as many bytes as there is room for, from a page on.

        Args:
            number: Of the page.
            room: Where they go.

        Raises:
            DamagedError: There are not so many.
            DataError: The file was changed since it was opened.
        """
        self.need(number, len(room))
        found = self._read_into(number * self.meta.page_size, room)
        self._check(number, len(room), found)

    def need(self, number: int, size: int) -> None:
        """Refuse bytes that the file does not say it has.

        Args:
            number: Of the page where they begin.
            size: How many there are.

        Raises:
            DamagedError: It says that it ends before.
        """
        last = self.meta.last_page
        if not FIRST_PAGE <= number <= last or size > (last + 1 - number) * self.meta.page_size:
            message = f"{size} bytes from page {number} on are wanted; page {last} is last"
            raise DamagedError(message)

    def damaged(self, error: Exception | str) -> DataError:
        """Return the error to raise for what went wrong while reading."""
        return DataError(f"the LMDB is damaged: {error}", str(self._path))

    def close(self) -> None:
        """Close it; may be called twice."""
        self._file.close()

    def _newest_meta(self) -> Meta:
        first = Meta.parse(self._read_at(0, META_SIZE))
        second = Meta.parse(self._read_at(first.page_size, META_SIZE))
        newest = max(first, second, key=lambda meta: meta.transaction)
        if newest.page_size != first.page_size:
            message = f"its pages have {first.page_size} or {newest.page_size} bytes"
            raise DamagedError(message)
        return newest

    def _read_at(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes, or fewer at the end of the file."""
        if hasattr(os, "pread"):
            content = os.pread(self._file.fileno(), size, offset)
            if len(content) in {0, size}:
                return content
        room = bytearray(size)
        with memoryview(room) as view:
            found = self._read_into(offset, view)
        return bytes(room[:found])

    def _read_into(self, offset: int, room: memoryview) -> int:
        """Fill the room, and return how many bytes that is: fewer at the end of the file."""
        found = 0
        while found < len(room):  # no more than 2 GiB come at once
            part = self._read_some(offset + found, room[found:])
            if not part:
                break
            found += part
        return found

    def _read_some(self, offset: int, room: memoryview) -> int:
        """Read into the beginning of the room, and return how many bytes that is."""
        if hasattr(os, "preadv"):  # the place in the file is shared with forked processes
            return os.preadv(self._file.fileno(), [room], offset)
        with self._lock:
            self._file.seek(offset)
            return self._file.readinto(room) or 0

    def _check(self, number: int, size: int, found: int) -> None:
        """Refuse what was read of a file that was changed, and too few bytes."""
        self._need_unchanged()
        if found < size:
            message = f"page {number} is beyond the end of the file"
            raise DamagedError(message)

    def _size_and_time(self) -> tuple[int, int]:
        status = os.fstat(self._file.fileno())
        return status.st_size, status.st_mtime_ns

    def _need_unchanged(self) -> None:
        if self._size_and_time() != self._when:
            message = (
                "the LMDB was changed while it was read, so that records may be mixed up; "
                "do not write to a database that is read, start again when it is complete"
            )
            raise DataError(message, str(self._path))
