"""Reader of LMDB files, without the LMDB library: pages, file, and the B+ tree of records.

The library trusts the file and crashes on damage. Here every offset, size and page number is
checked before its use. Pages are read with pread: a memory-mapped file that another program
truncates would kill the process (SIGBUS).

Source: LMDB, ``mdb.c`` (``MDB_page``, ``MDB_meta``, ``MDB_db``, ``MDB_node``), 64-bit
little-endian layout.
"""

import os
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from operator import lt
from pathlib import Path
from struct import Struct, unpack_from
from typing import NamedTuple, Self

from demitasse.core.paths import code_of, regular_file
from demitasse.core.threads import Uninterrupted
from demitasse.errors import DataError, ErrorCode
from demitasse.io.data.databases.database import BufferPool, DamagedError, Raw, check, what_is_there

HEADER = Struct("<Q2xHHH")  # page number, flags, end of the node offsets, start of the nodes
OVERFLOW_HEADER = Struct("<Q2xHI")  # page number, flags, number of consecutive pages
META = Struct("<II16x IHHQQQQQ IHHQQQQQ QQ")
"""Magic, version; free-page database and main database; last page, transaction.

Per database: page size, flags, depth, branch, leaf and overflow pages, records, root.
"""
NODE = Struct("<IHH")  # size of the value, flags, size of the key, which follows
BRANCH_NODE = Struct("<Q")  # page number (48 bits) and size of the key (16 bits)
PAGE_NUMBER = Struct("<Q")

PAGE_HEADER_SIZE = HEADER.size
META_SIZE = PAGE_HEADER_SIZE + META.size
MAGIC, VERSION = 0xBEEFC0DE, 1
PAGE_SIZES = {1 << bits for bits in range(9, 16)}

BRANCH, LEAF, OVERFLOW, META_PAGE = 1, 2, 4, 8
KIND_NAMES = {BRANCH: "branch", LEAF: "leaf"}
KINDS = 0x6F  # these and pages of duplicates; other bits are set by running programs only
OVERFLOW_DATA, DATABASE = 1, 2
SORTED_DUPLICATES = 4
NO_PAGE = (1 << 64) - 1
DEEPEST = 32
RECORD_HEADER_SIZE = OVERFLOW_HEADER.size
FIRST_PAGE = 2  # after the two meta pages

Span = tuple[int, int, int]
"""Location of a record of a leaf, in bytes from the start of the page.

(begin, end, 0) of its value; or (offset of its overflow page number, 0, size of its value).
"""


@dataclass(frozen=True)
class Meta:
    """Fields of a meta page.

    Attributes:
        last_page: Number of the last used page.
        depth: Levels of the B+ tree, leaves included; 0 without records.
        root: Page number of the root, or None without records.
    """

    page_size: int
    transaction: int
    last_page: int
    depth: int
    records: int
    root: int | None

    @classmethod
    def parse(cls, page: bytes) -> Self:
        """Return the fields of a meta page, or of its first ``META_SIZE`` bytes."""
        check(len(page) >= META_SIZE, "it is shorter than any LMDB")
        magic, version, page_size, *_, order, depth, _, _, _, records, root, last, transaction = (
            META.unpack_from(page, PAGE_HEADER_SIZE)
        )
        is_meta = magic == MAGIC and HEADER.unpack_from(page)[1] & META_PAGE
        check(is_meta, "it does not begin like an LMDB of a 64-bit little-endian machine")
        check(version == VERSION, f"got version {version}, expected {VERSION}")
        check(page_size in PAGE_SIZES, f"its header declares pages of {page_size} bytes")
        duplicates = order & SORTED_DUPLICATES
        reason = "has several records per key" if duplicates else "sorts its keys otherwise"
        check(not order, f"it {reason} (flags {order:#x}); Caffe's databases do not")
        empty = root == NO_PAGE
        consistent = empty == (depth == 0) == (records == 0) and depth <= DEEPEST
        check(consistent, f"its header declares {records} records {depth} levels below page {root}")
        return cls(page_size, transaction, last, depth, records, None if empty else root)


def _branch_children(content: bytes, at: int, size: int, number: int) -> list[int]:
    """Return the child page numbers of the branch page at an offset, in key order."""
    places = _node_offsets(content, at, size, number, BRANCH)
    unpack = BRANCH_NODE.unpack_from
    return [unpack(content, at + place)[0] & 0xFFFF_FFFF_FFFF for place in places]


class LeafLayout:
    """Record locations of a leaf page; nearly all leaves of a database share one layout."""

    def __init__(self, content: bytes, at: int, size: int, number: int) -> None:
        self.keys: list[bytes] = []
        self.spans: list[Span] = []
        places = _node_offsets(content, at, size, number, LEAF)
        self._marks = content[at + 8 : at + PAGE_HEADER_SIZE + 2 * len(places)]
        nodes: list[tuple[int, int, bytes]] = []  # offset, size of the key, header
        for place in places:
            length, kind, key_size = NODE.unpack_from(content, at + place)
            begin = place + NODE.size + key_size
            end = begin + (PAGE_NUMBER.size if kind == OVERFLOW_DATA else length)
            if kind == DATABASE:
                name = content[at + place + NODE.size : at + begin]
                message = f"it has a database named {name!r}; Caffe's databases are unnamed"
                raise DamagedError(message)
            if end > size or kind > OVERFLOW_DATA:
                message = f"page {number} has a node of kind {kind}, {key_size} + {length} bytes"
                raise DamagedError(message)
            self.spans.append((begin, 0, length) if kind == OVERFLOW_DATA else (begin, end, 0))
            self.keys.append(content[at + begin - key_size : at + begin])
            nodes.append((place, key_size, content[at + place : at + place + NODE.size]))
        in_order = sorted(range(len(nodes)), key=nodes.__getitem__)
        parts, reached = ["<Q"], PAGE_NUMBER.size
        for index in in_order:
            place, key_size, _ = nodes[index]
            if place < reached:
                message = f"page {number} has overlapping nodes"
                raise DamagedError(message)
            parts.append(f"{place - reached}x{NODE.size}s{key_size}s")
            reached = place + NODE.size + key_size
        self._fields = Struct("".join(parts))  # the page number, headers and keys
        self._headers = tuple(nodes[index][2] for index in in_order)
        self._order = sorted(range(len(nodes)), key=in_order.__getitem__)

    def keys_of(self, content: bytes, at: int, number: int) -> list[bytes] | None:
        """Return the keys of another leaf page, or None if its layout differs."""
        if not content.startswith(self._marks, at + PAGE_NUMBER.size):
            return None
        fields = self._fields.unpack_from(content, at)
        if fields[1::2] != self._headers:
            return None
        if fields[0] != number:
            raise _other_page(number, LEAF)
        keys = fields[2::2]
        return [keys[index] for index in self._order]


def _node_offsets(content: bytes, at: int, size: int, number: int, wanted: int) -> tuple[int, ...]:
    """Return the node offsets of a page."""
    found, kind, low, high = HEADER.unpack_from(content, at)
    if found != number or kind & KINDS != wanted:
        raise _other_page(number, wanted)
    count = (low - PAGE_HEADER_SIZE) // 2
    if count < 1 or low % 2 or not low <= high <= size:
        message = f"page {number} has node offsets up to byte {low} and nodes from byte {high}"
        raise DamagedError(message)
    places: tuple[int, ...] = unpack_from(f"<{count}H", content, at + PAGE_HEADER_SIZE)
    if min(places) < high or max(places) + NODE.size > size:
        message = f"page {number} has nodes at bytes {min(places)} to {max(places)}"
        raise DamagedError(message)
    return places


def _other_page(number: int, wanted: int) -> DamagedError:
    return DamagedError(f"page {number} is not a {KIND_NAMES[wanted]} page")


class LmdbFile:
    """LMDB file in its state at opening time; safe for concurrent reads.

    Attributes:
        meta: Meta page of the newest transaction; ``last_page`` is clipped to the file's size.
        lacks: Description of pages missing at the end of the file; empty if none. Pages freed by
            replaced or deleted records may be missing without harm.
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
            first = Meta.parse(self._read_at(0, META_SIZE))
            second = Meta.parse(self._read_at(first.page_size, META_SIZE))
            self.meta = max(first, second, key=lambda meta: meta.transaction)
            check(
                first.page_size == self.meta.page_size,
                f"meta pages declare {first.page_size} and {second.page_size} bytes per page",
            )
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
        """Return bytes from page ``number`` on; refuse a short read and a changed file."""
        self.need(number, size)
        content = self._read_at(number * self.meta.page_size, size)
        self._check_read(number, size, len(content))
        return content

    def read_into(self, number: int, buffer: memoryview) -> None:
        """Fill a buffer with bytes from page ``number`` on; see ``read``."""
        self.need(number, len(buffer))
        found = self._read_into(number * self.meta.page_size, buffer)
        self._check_read(number, len(buffer), found)

    def need(self, number: int, size: int) -> None:
        """Refuse a range of bytes from page ``number`` on that exceeds the last page."""
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

    def _read_at(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes, or fewer at the end of the file."""
        if hasattr(os, "pread"):
            content = os.pread(self._file.fileno(), size, offset)
            if len(content) in {0, size}:
                return content
        buffer = bytearray(size)
        with memoryview(buffer) as view:
            found = self._read_into(offset, view)
        return bytes(buffer[:found])

    def _read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill the buffer; return the number of bytes, fewer at the end of the file."""
        found = 0
        while found < len(buffer):  # one read returns at most 2 GiB
            if hasattr(os, "preadv"):  # forked processes share the file offset
                part = os.preadv(self._file.fileno(), [buffer[found:]], offset + found)
            else:
                with self._lock:
                    self._file.seek(offset + found)
                    part = self._file.readinto(buffer[found:]) or 0
            if not part:
                break
            found += part
        return found

    def _check_read(self, number: int, size: int, found: int) -> None:
        """Refuse a short read, and any read of a changed file."""
        if self._size_and_time() != self._when:
            message = (
                "the LMDB was changed while it was read, so records may be inconsistent; "
                "do not write to an open database, restart when the writer has finished"
            )
            raise DataError(message, str(self._path), code=ErrorCode.BAD_STATE)
        if found < size:
            message = f"page {number} is beyond the end of the file"
            raise DamagedError(message)

    def _size_and_time(self) -> tuple[int, int]:
        status = os.fstat(self._file.fileno())
        return status.st_size, status.st_mtime_ns


READ_AHEAD = 1 << 16  # read-ahead in bytes for consecutive pages
MAX_READ = 1 << 18  # largest read in bytes for consecutive overflow records

OverflowRecord = tuple[int, int, int]
"""A record in overflow pages: first page, size of its value in bytes, number of pages."""


class Leaf(NamedTuple):
    """Leaf page at offset ``at`` of ``content``, its increasing keys and its records."""

    content: memoryview
    at: int
    keys: list[bytes]
    spans: list[Span]


class LmdbTree:
    """Reader of leaves and records, with read-ahead; for one thread."""

    def __init__(self, file: LmdbFile) -> None:
        self._file, self._page_size = file, file.meta.page_size
        self._pages = _Window(file)
        self._layout: LeafLayout | None = None

    def leaves(self) -> Generator[Leaf]:
        """Yield all leaves. Keys must increase from leaf to leaf, which excludes cycles."""
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
                levels.append(iter(_branch_children(pages.content, at, self._page_size, number)))
                continue
            layout = self._layout
            keys = None if layout is None else layout.keys_of(pages.content, at, number)
            if layout is None or keys is None:
                layout = LeafLayout(pages.content, at, self._page_size, number)
                self._layout, keys = layout, layout.keys
            if not (last_key < keys[0] and all(map(lt, keys, keys[1:]))):
                message = f"page {number} has keys out of order"
                raise DamagedError(message)
            last_key = keys[-1]
            found += len(keys)
            yield Leaf(pages.view, at, keys, layout.spans)
        declared = meta.records
        check(found == declared, f"its header declares {declared} records, but it has {found}")

    def last_key(self) -> bytes | None:
        """Return the key of the last record, or None without records."""
        number, pages, size = self._file.meta.root, self._pages, self._page_size
        if number is None:
            return None
        for _ in range(1, self._file.meta.depth):
            at = pages.find(number, size)
            number = _branch_children(pages.content, at, size, number)[-1]
        at = pages.find(number, size)
        return LeafLayout(pages.content, at, size, number).keys[-1]

    def contents(self, leaf: Leaf, begin: int, end: int, buffers: BufferPool) -> list[Raw]:
        """Return the values of a range of records; overflow pages are read into ``buffers``."""
        overflowing = self._overflowing(self._overflow_records(leaf, begin, end), buffers)
        return [
            leaf.content[leaf.at + first : leaf.at + last] if last else next(overflowing)
            for first, last, _ in leaf.spans[begin:end]
        ]

    def need_all(self) -> None:
        """Check that the file has every page that records need; reads all leaves."""
        for leaf in self.leaves():
            for number, size, _ in self._overflow_records(leaf, 0, len(leaf.spans)):
                self._file.need(number, RECORD_HEADER_SIZE + size)

    def _overflow_records(self, leaf: Leaf, begin: int, end: int) -> list[OverflowRecord]:
        content, at, page_size = leaf.content, leaf.at, self._page_size
        unpack = PAGE_NUMBER.unpack_from
        return [
            (unpack(content, at + place)[0], size, -(-(RECORD_HEADER_SIZE + size) // page_size))
            for place, last, size in leaf.spans[begin:end]
            if not last
        ]

    def _overflowing(self, records: list[OverflowRecord], buffers: BufferPool) -> Iterator[Raw]:
        """Yield the values of records in overflow pages; consecutive records are read at once."""
        page_size = self._page_size
        for run in self._neighbours(records):
            first, (last, size, _) = run[0][0], run[-1]
            whole = (last - first) * page_size + RECORD_HEADER_SIZE + size
            self._file.need(first, whole)  # before allocation
            buffer = buffers.next(whole)
            self._file.read_into(first, buffer)
            contents = buffer.toreadonly()
            for number, size, pages in run:
                at = (number - first) * page_size
                found, kind, count = OVERFLOW_HEADER.unpack_from(contents, at)
                if found != number or kind & KINDS != OVERFLOW or count < pages:
                    message = f"page {number} is not the first of {pages} overflow pages"
                    raise DamagedError(message)
                at += RECORD_HEADER_SIZE
                yield contents[at : at + size]

    def _neighbours(self, records: list[OverflowRecord]) -> Iterator[list[OverflowRecord]]:
        """Yield runs of consecutive records, of limited size."""
        most = MAX_READ // self._page_size
        run: list[OverflowRecord] = []
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


class _Window:
    """Read-ahead buffer of consecutive pages."""

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
        if 0 <= at <= held + READ_AHEAD:  # sequential access, as in most databases
            left = (self._file.meta.last_page + 1 - number) * self._page_size
            size = max(size, min(READ_AHEAD, left))
        self._keep(self._file.read(number, size))
        self._begin = place
        return 0

    def _keep(self, content: bytes) -> None:
        self.content, self.view = content, memoryview(content)
