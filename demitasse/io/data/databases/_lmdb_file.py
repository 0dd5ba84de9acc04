"""LMDB file, read page by page.

Pages are read with pread. A memory-mapped file that another program truncates would kill the
process (SIGBUS).
"""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

from demitasse.core.paths import code_of, regular_file
from demitasse.core.threads import Uninterrupted
from demitasse.errors import DataError, ErrorCode
from demitasse.io.data.databases._lmdb_pages import (
    FIRST_PAGE,
    META_SIZE,
    Meta,
)
from demitasse.io.data.databases.database import DamagedError, what_is_there

__all__ = ["LmdbFile"]


class LmdbFile:
    """LMDB file in its state at opening time; safe for concurrent reads.

    Args:
        path: Folder of the database, or its single file.

    Attributes:
        meta: Meta page of the newest transaction; ``last_page`` is clipped to the file's size.
        lacks: Description of pages missing at the end of the file; empty if none. Pages freed by
            replaced or deleted records may be missing without harm.

    Raises:
        DataError: The file cannot be opened; the message names what was found.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        file = path / "data.mdb" if path.is_dir() else path
        if not file.exists():
            raise DataError(what_is_there(path, "LMDB"), str(path), code=ErrorCode.NOT_FOUND)
        try:
            with Uninterrupted():  # no interrupt between open and assignment
                self._file = regular_file(file).open("rb", buffering=0)
        except OSError as error:
            message = f"cannot be opened as an LMDB: {error}"
            raise DataError(message, str(path), code=code_of(error)) from error
        self._lock = threading.Lock()
        self._when = self._size_and_time()
        try:
            self.meta = self._newest_meta()
        except (DamagedError, OSError) as error:
            self.close()
            message = f"cannot be opened as an LMDB: {error}"
            raise DataError(message, str(path), code=ErrorCode.CORRUPT) from error
        self.lacks = ""
        needed = (self.meta.last_page + 1) * self.meta.page_size
        found = self._when[0]
        if found < needed:
            self.lacks = f"its header declares {needed} bytes, the file has {found}"
            self.meta = replace(self.meta, last_page=found // self.meta.page_size - 1)

    def __del__(self) -> None:
        """Close the file if an interrupt prevented ``close``."""
        if hasattr(self, "_file"):
            self._file.close()

    def read(self, number: int, size: int) -> bytes:
        """Return ``size`` bytes from page ``number`` on.

        Args:
            number: Page number.
            size: Number of bytes.

        Raises:
            DamagedError: The file is too short.
            DataError: The file was changed since opening.
        """
        self.need(number, size)
        content = self._read_at(number * self.meta.page_size, size)
        self._check(number, size, len(content))
        return content

    def read_into(self, number: int, room: memoryview) -> None:
        """Fill a buffer with bytes from page ``number`` on.

        Args:
            number: Page number.
            room: The buffer.

        Raises:
            DamagedError: The file is too short.
            DataError: The file was changed since opening.
        """
        self.need(number, len(room))
        found = self._read_into(number * self.meta.page_size, room)
        self._check(number, len(room), found)

    def need(self, number: int, size: int) -> None:
        """Check that pages up to the last page hold ``size`` bytes.

        Args:
            number: Page number of the first byte.
            size: Number of bytes.

        Raises:
            DamagedError: The last page is exceeded.
        """
        last = self.meta.last_page
        if not FIRST_PAGE <= number <= last or size > (last + 1 - number) * self.meta.page_size:
            message = f"{size} bytes from page {number} exceed the last page, {last}"
            raise DamagedError(message)

    def damaged(self, error: Exception | str) -> DataError:
        """Return the DataError for a failed read."""
        message = f"the LMDB is damaged: {error}"
        return DataError(message, str(self._path), code=ErrorCode.CORRUPT)

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()

    def _newest_meta(self) -> Meta:
        first = Meta.parse(self._read_at(0, META_SIZE))
        second = Meta.parse(self._read_at(first.page_size, META_SIZE))
        newest = max(first, second, key=lambda meta: meta.transaction)
        if newest.page_size != first.page_size:
            message = f"meta pages declare {first.page_size} and {newest.page_size} bytes per page"
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
        """Fill the buffer; return the number of bytes, fewer at the end of the file."""
        found = 0
        while found < len(room):  # one read returns at most 2 GiB
            part = self._read_some(offset + found, room[found:])
            if not part:
                break
            found += part
        return found

    def _read_some(self, offset: int, room: memoryview) -> int:
        """Read into the start of the buffer; return the number of bytes."""
        if hasattr(os, "preadv"):  # forked processes share the file offset
            return os.preadv(self._file.fileno(), [room], offset)
        with self._lock:
            self._file.seek(offset)
            return self._file.readinto(room) or 0

    def _check(self, number: int, size: int, found: int) -> None:
        """Refuse a short read, and any read of a changed file."""
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
                "the LMDB was changed while it was read, so records may be inconsistent; "
                "do not write to an open database, restart when the writer has finished"
            )
            raise DataError(message, str(self._path), code=ErrorCode.BAD_STATE)
