"""B+ tree of an LMDB: iteration over leaves and records."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from operator import lt
from typing import NamedTuple

from demitasse.io.data.databases._lmdb_file import LmdbFile
from demitasse.io.data.databases._lmdb_pages import (
    RECORD_HEADER_SIZE,
    LeafLayout,
    Span,
    branch_children,
    check_record_header,
    page_number,
)
from demitasse.io.data.databases.database import DamagedError, Raw
from demitasse.io.data.databases.rooms import Rooms

__all__ = ["Leaf", "LmdbTree"]

AHEAD = 1 << 16
"""Read-ahead in bytes for consecutive pages."""

TOGETHER = 1 << 18
"""Largest read in bytes for consecutive overflow records."""


Elsewhere = tuple[int, int, int]
"""A record in overflow pages: first page, size of its value in bytes, number of pages."""


class Leaf(NamedTuple):
    """A leaf page.

    Attributes:
        content: Bytes that contain the page.
        at: Offset of the page.
        keys: Keys of its records, increasing.
        spans: Locations of its records; see ``LeafLayout``.
    """

    content: memoryview
    at: int
    keys: list[bytes]
    spans: list[Span]


class LmdbTree:
    """Reader of leaves and records, with read-ahead; for one thread.

    Args:
        file: The LMDB file.
    """

    def __init__(self, file: LmdbFile) -> None:
        self._file, self._page_size = file, file.meta.page_size
        self._pages = _Window(file)
        self._layout: LeafLayout | None = None

    def leaves(self) -> Generator[Leaf]:
        """Yield all leaves. Keys must increase from leaf to leaf, which excludes cycles.

        Raises:
            DamagedError: A page is invalid.
            DataError: The file was changed.
        """
        meta, pages = self._file.meta, self._pages
        levels = [iter([] if meta.root is None else [meta.root])]  # pending pages, by depth
        last_key, found = b"", 0
        while levels:
            number = next(levels[-1], None)
            if number is None:
                levels.pop()
                continue
            at = pages.find(number, self._page_size)
            if len(levels) < meta.depth:
                levels.append(iter(branch_children(pages.content, at, self._page_size, number)))
                continue
            keys, spans = self._records_of(pages.content, at, number)
            if not (last_key < keys[0] and all(map(lt, keys, keys[1:]))):
                message = f"page {number} has keys out of order"
                raise DamagedError(message)
            last_key = keys[-1]
            found += len(keys)
            yield Leaf(pages.view, at, keys, spans)
        if found != meta.records:
            message = f"its header declares {meta.records} records, but it has {found}"
            raise DamagedError(message)

    def last_key(self) -> bytes | None:
        """Return the key of the last record, or None without records.

        Raises:
            DamagedError: A page is invalid.
            DataError: The file was changed.
        """
        number, pages, size = self._file.meta.root, self._pages, self._page_size
        if number is None:
            return None
        for _ in range(1, self._file.meta.depth):
            at = pages.find(number, size)
            number = branch_children(pages.content, at, size, number)[-1]
        at = pages.find(number, size)
        return LeafLayout(pages.content, at, size, number).keys[-1]

    def contents(self, leaf: Leaf, begin: int, end: int, rooms: Rooms) -> list[Raw]:
        """Return the values of a range of records of a leaf.

        Args:
            leaf: The leaf.
            begin: Index of the first record.
            end: Index after the last record.
            rooms: Buffers for records in overflow pages.

        Raises:
            DamagedError: A page is invalid.
            DataError: The file was changed.
        """
        overflowing = self._overflowing(self._elsewhere(leaf, begin, end), rooms)
        return [
            leaf.content[leaf.at + first : leaf.at + last] if last else next(overflowing)
            for first, last, _ in leaf.spans[begin:end]
        ]

    def need_all(self) -> None:
        """Check that the file has every page that records need; reads all leaves.

        Raises:
            DamagedError: A page is missing or invalid.
            DataError: The file was changed.
        """
        for leaf in self.leaves():
            for number, size, _ in self._elsewhere(leaf, 0, len(leaf.spans)):
                self._file.need(number, RECORD_HEADER_SIZE + size)

    def _elsewhere(self, leaf: Leaf, begin: int, end: int) -> list[Elsewhere]:
        content, at, page_size = leaf.content, leaf.at, self._page_size
        return [
            (page_number(content, at + place), size, -(-(RECORD_HEADER_SIZE + size) // page_size))
            for place, last, size in leaf.spans[begin:end]
            if not last
        ]

    def _overflowing(self, records: list[Elsewhere], rooms: Rooms) -> Iterator[Raw]:
        """Yield the values of records in overflow pages; consecutive records are read at once.

        Args:
            records: Locations of the records.
            rooms: Buffers for their values.
        """
        page_size = self._page_size
        for run in self._neighbours(records):
            first, (last, size, _) = run[0][0], run[-1]
            whole = (last - first) * page_size + RECORD_HEADER_SIZE + size
            self._file.need(first, whole)  # before allocation
            room = rooms.next(whole)
            self._file.read_into(first, room)
            contents = room.toreadonly()
            for number, size, pages in run:
                at = (number - first) * page_size
                check_record_header(contents, at, number, pages)
                at += RECORD_HEADER_SIZE
                yield contents[at : at + size]

    def _neighbours(self, records: list[Elsewhere]) -> Iterator[list[Elsewhere]]:
        """Yield runs of consecutive records, of limited size."""
        most = TOGETHER // self._page_size
        run: list[Elsewhere] = []
        behind = 0
        for record in records:
            number, _, pages = record
            if run and (number != behind or number + pages - run[0][0] > most):
                yield run
                run = []
            run.append(record)
            behind = number + pages
        if run:
            yield run

    def _records_of(self, content: bytes, at: int, number: int) -> tuple[list[bytes], list[Span]]:
        """Return the keys of a leaf and the locations of its records."""
        layout = self._layout
        keys = None if layout is None else layout.keys_of(content, at, number)
        if layout is None or keys is None:
            layout = self._layout = LeafLayout(content, at, self._page_size, number)
            keys = layout.keys
        return keys, layout.spans


class _Window:
    """Read-ahead buffer of consecutive pages.

    Attributes:
        content: The bytes.
        view: A memoryview of ``content``.
    """

    def __init__(self, file: LmdbFile) -> None:
        self._file, self._page_size = file, file.meta.page_size
        self._begin = 0  # file offset of the buffer
        self._keep(b"")

    def find(self, number: int, size: int) -> int:
        """Return the offset of a page in ``content``; read the page if needed."""
        place = number * self._page_size
        at, held = place - self._begin, len(self.content)
        if 0 <= at <= held - size:
            return at
        if 0 <= at <= held + AHEAD:  # sequential access, as in most databases
            left = (self._file.meta.last_page + 1 - number) * self._page_size
            size = max(size, min(AHEAD, left))
        self._keep(self._file.read(number, size))
        self._begin = place
        return 0

    def _keep(self, content: bytes) -> None:
        self.content, self.view = content, memoryview(content)
