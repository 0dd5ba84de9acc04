"""LMDB pages, decoded without the LMDB library.

The library trusts the file and crashes on damage. Here every offset, size and page number is
checked before its use.

Source: LMDB, ``mdb.c`` (``MDB_page``, ``MDB_meta``, ``MDB_db``, ``MDB_node``), 64-bit
little-endian layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct, unpack_from

from demitasse.io.data.databases.database import DamagedError, Raw

__all__ = [
    "FIRST_PAGE",
    "META_SIZE",
    "RECORD_HEADER_SIZE",
    "LeafLayout",
    "Meta",
    "Span",
    "branch_children",
    "check_record_header",
    "page_number",
]

HEADER = Struct("<Q2xHHH")
"""Page number, flags, end of the node offsets, start of the nodes."""
OVERFLOW_HEADER = Struct("<Q2xHI")
"""Page number, flags, number of consecutive pages."""
META = Struct("<II16x IHHQQQQQ IHHQQQQQ QQ")
"""Magic, version; free-page database and main database; last page, transaction.

Per database: page size, flags, depth, branch, leaf and overflow pages, records, root.
"""
NODE = Struct("<IHH")
"""Size of the value, flags, size of the key, which follows."""
BRANCH_NODE = Struct("<Q")
"""Page number (48 bits) and size of the key (16 bits)."""
PAGE_NUMBER = Struct("<Q")

PAGE_HEADER_SIZE = HEADER.size
META_SIZE = PAGE_HEADER_SIZE + META.size
MAGIC, VERSION = 0xBEEFC0DE, 1
PAGE_SIZES = {1 << bits for bits in range(9, 16)}

BRANCH, LEAF, OVERFLOW, META_PAGE = 1, 2, 4, 8
KIND_NAMES = {BRANCH: "branch", LEAF: "leaf"}
KINDS = 0x6F  # these and pages of duplicates; other bits are set by running programs only
ELSEWHERE, DATABASE = 1, 2
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
        page_size: In bytes.
        transaction: Number of the transaction that wrote the page.
        last_page: Number of the last used page.
        depth: Levels of the B+ tree, leaves included; 0 without records.
        records: Number of records.
        root: Page number of the root, or None without records.
    """

    page_size: int
    transaction: int
    last_page: int
    depth: int
    records: int
    root: int | None

    @classmethod
    def parse(cls, page: bytes) -> Meta:
        """Parse a meta page, or its first ``META_SIZE`` bytes.

        Raises:
            DamagedError: The bytes are no meta page, or of an unsupported kind of database.
        """
        if len(page) < META_SIZE:
            message = "it is shorter than any LMDB"
            raise DamagedError(message)
        magic, version, page_size, *_, order, depth, _, _, _, records, root, last, transaction = (
            META.unpack_from(page, PAGE_HEADER_SIZE)
        )
        if magic != MAGIC or not HEADER.unpack_from(page)[1] & META_PAGE:
            message = "it does not begin like an LMDB of a 64-bit little-endian machine"
            raise DamagedError(message)
        if version != VERSION:
            message = f"got version {version}, expected {VERSION}"
            raise DamagedError(message)
        if page_size not in PAGE_SIZES:
            message = f"its header declares pages of {page_size} bytes"
            raise DamagedError(message)
        if order:
            reason = "has several records per key" if order & SORTED_DUPLICATES else ""
            reason = reason or "sorts its keys with another comparator"
            message = f"it {reason} (flags {order:#x}); Caffe's databases do not"
            raise DamagedError(message)
        empty = root == NO_PAGE
        if empty != (depth == 0) or empty != (records == 0) or depth > DEEPEST:
            message = f"its header declares {records} records {depth} levels below page {root}"
            raise DamagedError(message)
        return cls(page_size, transaction, last, depth, records, None if empty else root)


def branch_children(content: bytes, at: int, size: int, number: int) -> list[int]:
    """Return the child page numbers of a branch page, in key order.

    Args:
        content: Bytes that contain the page.
        at: Offset of the page.
        size: Size of the page, in bytes.
        number: Page number.

    Raises:
        DamagedError: The bytes are not this branch page.
    """
    places = _places(content, at, size, number, BRANCH)
    unpack = BRANCH_NODE.unpack_from
    return [unpack(content, at + place)[0] & 0xFFFF_FFFF_FFFF for place in places]


class LeafLayout:
    """Record locations of a leaf page; nearly all leaves of a database share one layout.

    Args:
        content: Bytes that contain the page.
        at: Offset of the page.
        size: Size of the page, in bytes.
        number: Page number.

    Attributes:
        keys: Keys of this page.
        spans: Locations of its records.

    Raises:
        DamagedError: The bytes are not this leaf page.
    """

    def __init__(self, content: bytes, at: int, size: int, number: int) -> None:
        self.keys: list[bytes] = []
        self.spans: list[Span] = []
        places = _places(content, at, size, number, LEAF)
        self._marks = content[at + 8 : at + PAGE_HEADER_SIZE + 2 * len(places)]
        nodes: list[tuple[int, int, bytes]] = []  # offset, size of the key, header
        for place in places:
            length, kind, key_size = NODE.unpack_from(content, at + place)
            begin = place + NODE.size + key_size
            end = begin + (PAGE_NUMBER.size if kind == ELSEWHERE else length)
            if end > size or kind > ELSEWHERE:
                raise _node_fault(content, at + place, number)
            self.spans.append((begin, 0, length) if kind == ELSEWHERE else (begin, end, 0))
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
        """Return the keys of another leaf page, or None if its layout differs.

        Raises:
            DamagedError: The page has another page number.
        """
        if not content.startswith(self._marks, at + PAGE_NUMBER.size):
            return None
        fields = self._fields.unpack_from(content, at)
        if fields[1::2] != self._headers:
            return None
        if fields[0] != number:
            raise _other_page(number, LEAF)
        keys = fields[2::2]
        return [keys[index] for index in self._order]


def page_number(content: Raw, at: int) -> int:
    """Return the page number stored at an offset."""
    number: int = PAGE_NUMBER.unpack_from(content, at)[0]
    return number


def check_record_header(content: Raw, at: int, number: int, pages: int) -> None:
    """Check the header of the overflow pages of a record.

    Raises:
        DamagedError: This is not the first of ``pages`` overflow pages.
    """
    found, kind, count = OVERFLOW_HEADER.unpack_from(content, at)
    if found != number or kind & KINDS != OVERFLOW or count < pages:
        message = f"page {number} is not the first of {pages} overflow pages"
        raise DamagedError(message)


def _places(content: bytes, at: int, size: int, number: int, wanted: int) -> tuple[int, ...]:
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


def _node_fault(content: bytes, at: int, number: int) -> DamagedError:
    """Return the error for an invalid node of a leaf."""
    length, kind, key_size = NODE.unpack_from(content, at)
    if kind == DATABASE:
        name = content[at + 8 : at + 8 + key_size]
        return DamagedError(f"it has a database named {name!r}; Caffe's databases are unnamed")
    return DamagedError(f"page {number} has a node of kind {kind}, {key_size} + {length} bytes")
