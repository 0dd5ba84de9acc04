"""The pages of an LMDB, taken apart without the LMDB library.

The library trusts what a file says and ends the process when it is wrong. Here every offset, size
and page number is checked before it is used.

Source: LMDB, ``mdb.c`` (``MDB_page``, ``MDB_meta``, ``MDB_db``, ``MDB_node``), as written on 64-bit
little-endian machines.
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
"""Page number, kind, where the places of nodes end, where nodes begin."""
OVERFLOW_HEADER = Struct("<Q2xHI")
"""Page number, kind, pages in a row."""
META = Struct("<II16x IHHQQQQQ IHHQQQQQ QQ")
"""Magic, version; the database of free pages and the main one; last page, transaction.

Of a database: page size, order of keys, depth, branches, leaves, overflow pages, records, root.
"""
NODE = Struct("<IHH")
"""Size of the contents, kind, size of the key, which follows."""
BRANCH_NODE = Struct("<Q")
"""Page number (48 bits) and size of the key (16 bits)."""
PAGE_NUMBER = Struct("<Q")

PAGE_HEADER_SIZE = HEADER.size
META_SIZE = PAGE_HEADER_SIZE + META.size
MAGIC, VERSION = 0xBEEFC0DE, 1
PAGE_SIZES = {1 << bits for bits in range(9, 16)}

BRANCH, LEAF, OVERFLOW, META_PAGE = 1, 2, 4, 8
KIND_NAMES = {BRANCH: "branch", LEAF: "leaf"}
KINDS = 0x6F  # those and pages of duplicates; the other bits are marks of a running program
ELSEWHERE, DATABASE = 1, 2
SORTED_DUPLICATES = 4
NO_PAGE = (1 << 64) - 1
DEEPEST = 32
RECORD_HEADER_SIZE = OVERFLOW_HEADER.size
FIRST_PAGE = 2  # after the two meta pages


Span = tuple[int, int, int]
"""Where a record of a leaf is, from the beginning of the page: where its contents begin and end,
and 0; or where the number of its overflow pages is, 0, and the size of its contents. In bytes.
"""


@dataclass(frozen=True)
class Meta:
    """What a meta page says.

    Attributes:
        page_size: In bytes.
        transaction: Number of the transaction that wrote it.
        last_page: Number of the last page that is in use.
        depth: Levels of the tree of records, leaves included; 0 without records.
        records: How many there are.
        root: Page of the root, or None without records.
    """

    page_size: int
    transaction: int
    last_page: int
    depth: int
    records: int
    root: int | None

    @classmethod
    def parse(cls, page: bytes) -> Meta:
        """Read a meta page, or its first ``META_SIZE`` bytes.

        Raises:
            DamagedError: It is none, or one of a database that is not supported.
        """
        if len(page) < META_SIZE:
            message = "it is shorter than any LMDB"
            raise DamagedError(message)
        magic, version, page_size, *_, order, depth, _, _, _, records, root, last, transaction = (
            META.unpack_from(page, PAGE_HEADER_SIZE)
        )
        if magic != MAGIC or not HEADER.unpack_from(page)[1] & META_PAGE:
            message = "it does not begin as an LMDB of a 64-bit little-endian machine does"
            raise DamagedError(message)
        if version != VERSION:
            message = f"it is of version {version}; only version {VERSION} is known"
            raise DamagedError(message)
        if page_size not in PAGE_SIZES:
            message = f"it says its pages have {page_size} bytes"
            raise DamagedError(message)
        if order:
            reason = "has several records of one key" if order & SORTED_DUPLICATES else ""
            reason = reason or "has its keys in an order of its own"
            message = f"it {reason} (flags {order:#x}); Caffe's databases do not"
            raise DamagedError(message)
        empty = root == NO_PAGE
        if empty != (depth == 0) or empty != (records == 0) or depth > DEEPEST:
            message = f"it says its {records} records are {depth} levels below page {root}"
            raise DamagedError(message)
        return cls(page_size, transaction, last, depth, records, None if empty else root)


def branch_children(content: bytes, at: int, size: int, number: int) -> list[int]:
    """Return the numbers of the pages below a branch page, in order of their keys.

    Args:
        content: Bytes that hold the page.
        at: Where in them it begins.
        size: Of the page, in bytes.
        number: Of the page.

    Raises:
        DamagedError: This is no such page.
    """
    places = _places(content, at, size, number, BRANCH)
    unpack = BRANCH_NODE.unpack_from
    return [unpack(content, at + place)[0] & 0xFFFF_FFFF_FFFF for place in places]


class LeafLayout:
    """Where the records of a leaf page are; nearly all leaves of most databases have the same.

    Args:
        content: Bytes that hold the page.
        at: Where in them it begins.
        size: Of the page, in bytes.
        number: Of the page.

    Attributes:
        keys: The keys of this page.
        spans: Where its records are.

    Raises:
        DamagedError: This is no such page.
    """

    def __init__(self, content: bytes, at: int, size: int, number: int) -> None:
        self.keys: list[bytes] = []
        self.spans: list[Span] = []
        places = _places(content, at, size, number, LEAF)
        self._marks = content[at + 8 : at + PAGE_HEADER_SIZE + 2 * len(places)]
        nodes: list[tuple[int, int, bytes]] = []  # place, size of the key, header
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
                message = f"page {number} has nodes one inside the other"
                raise DamagedError(message)
            parts.append(f"{place - reached}x{NODE.size}s{key_size}s")
            reached = place + NODE.size + key_size
        self._fields = Struct("".join(parts))  # the page number, headers and keys
        self._headers = tuple(nodes[index][2] for index in in_order)
        self._order = sorted(range(len(nodes)), key=in_order.__getitem__)

    def keys_of(self, content: bytes, at: int, number: int) -> list[bytes] | None:
        """Return the keys of another leaf page, or None where its records are in other places.

        Raises:
            DamagedError: The page has another number.
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
    """Return the page number that is stored at a place."""
    number: int = PAGE_NUMBER.unpack_from(content, at)[0]
    return number


def check_record_header(content: Raw, at: int, number: int, pages: int) -> None:
    """Check that the overflow pages of a record of ``pages`` pages begin here.

    Raises:
        DamagedError: They do not.
    """
    found, kind, count = OVERFLOW_HEADER.unpack_from(content, at)
    if found != number or kind & KINDS != OVERFLOW or count < pages:
        message = f"page {number} is not the first of the {pages} of a record"
        raise DamagedError(message)


def _places(content: bytes, at: int, size: int, number: int, wanted: int) -> tuple[int, ...]:
    """Return where the nodes of a page are, from its beginning."""
    found, kind, low, high = HEADER.unpack_from(content, at)
    if found != number or kind & KINDS != wanted:
        raise _other_page(number, wanted)
    count = (low - PAGE_HEADER_SIZE) // 2
    if count < 1 or low % 2 or not low <= high <= size:
        message = f"page {number} has places of nodes up to byte {low} and nodes from byte {high}"
        raise DamagedError(message)
    places: tuple[int, ...] = unpack_from(f"<{count}H", content, at + PAGE_HEADER_SIZE)
    if min(places) < high or max(places) + NODE.size > size:
        message = f"page {number} has nodes at the bytes {min(places)} to {max(places)}"
        raise DamagedError(message)
    return places


def _other_page(number: int, wanted: int) -> DamagedError:
    return DamagedError(f"page {number} is not the {KIND_NAMES[wanted]} it should be")


def _node_fault(content: bytes, at: int, number: int) -> DamagedError:
    """Say what is wrong with a node of a leaf."""
    length, kind, key_size = NODE.unpack_from(content, at)
    if kind == DATABASE:
        name = content[at + 8 : at + 8 + key_size]
        return DamagedError(f"it holds a database named {name!r}; Caffe's databases have no names")
    return DamagedError(f"page {number} has a node of kind {kind} with {key_size} + {length} bytes")
