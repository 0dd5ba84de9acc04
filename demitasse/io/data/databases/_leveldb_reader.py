"""Reader of LevelDB files: logs, manifest and tables, without the LevelDB library.

Checksums are not verified; LevelDB verifies them on request only.

Source: LevelDB, ``doc/log_format.md``, ``doc/table_format.md``, ``db/version_edit.cc``; Snappy,
``format_description.txt``.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from demitasse.core.paths import read_bytes, regular_file
from demitasse.io.data.databases.database import DamagedError

LOG_BLOCK = 32 * 1024
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4

ORDER = b"leveldb.BytewiseComparator"

DELETION, VALUE = 0, 1
FOOTER, MAGIC = 48, 0xDB4775248B80FB57
PLAIN, SNAPPY = 0, 1
LARGEST_BLOCK = 1 << 31

Entry = tuple[bytes, int, bytes]
"""Key, minus (sequence number * 256 + kind), value; sorted entries are newest first."""


class Table(NamedTuple):
    """A table: its size in bytes, and its first and last internal key."""

    size: int
    first: bytes
    last: bytes


@dataclass
class Manifest:
    """List of the files of a database.

    Attributes:
        log_number: Number of the oldest log that is not yet a table.
        next_file: First unused file number.
        last_sequence: Number of writes so far.
        tables: The tables, by level and number.
    """

    log_number: int = 0
    next_file: int = 0
    last_sequence: int = 0
    tables: dict[tuple[int, int], Table] = field(default_factory=dict)


class _Bytes:
    """Cursor over bytes that decodes varints and length-prefixed strings."""

    def __init__(self, content: bytes, at: int = 0) -> None:
        self.content, self.at = content, at

    def __bool__(self) -> bool:
        return self.at < len(self.content)

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.content):
            message = f"got {len(self.content) - self.at} bytes, expected {count}"
            raise DamagedError(message)
        part = self.content[self.at : end]
        self.at = end
        return part

    def varint(self) -> int:
        value = shift = 0
        while True:
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                message = "a number is longer than 64 bits"
                raise DamagedError(message)

    def counted(self) -> bytes:
        return self.take(self.varint())


# -- logs --------------------------------------------------------------------------------------


def _log_records(path: Path) -> Iterator[bytes]:
    """Yield the records of a log, except an incomplete last record."""
    content = read_bytes(path)
    at = 0
    parts: list[bytes] = []
    while at + 7 <= len(content):
        left = LOG_BLOCK - at % LOG_BLOCK
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        part = content[at + 7 : at + 7 + length]
        if len(part) < length or 7 + length > left or not FULL <= kind <= LAST:
            return
        at += 7 + length
        if kind in {FULL, FIRST}:
            parts = []
        parts.append(part)
        if kind in {FULL, LAST}:
            yield b"".join(parts)
            parts = []


def log_entries(path: Path) -> Iterator[Entry]:
    """Yield the writes and deletions of a log, oldest first."""
    for record in _log_records(path):
        source = _Bytes(record)
        sequence, count = struct.unpack("<QI", source.take(12))
        for number in range(sequence, sequence + count):
            (kind,) = source.take(1)
            if kind not in {DELETION, VALUE}:
                message = f"the log {path.name} holds an entry of unknown kind {kind}"
                raise DamagedError(message)
            key = source.counted()
            yield key, -(number << 8 | kind), source.counted() if kind == VALUE else b""


def read_manifest(path: Path) -> Manifest:
    """Return the manifest: the files of the database."""
    manifest = Manifest()
    for record in _log_records(path):
        source = _Bytes(record)
        while source:
            match source.varint():
                case 1:
                    if (order := source.counted()) != ORDER:
                        message = f"keys are sorted by another comparator, {order.decode()!r}"
                        raise DamagedError(message)
                case 2:
                    manifest.log_number = source.varint()
                case 3:
                    manifest.next_file = source.varint()
                case 4:
                    manifest.last_sequence = source.varint()
                case 9:  # previous log
                    source.varint()
                case 5:  # compaction pointer
                    source.varint()
                    source.counted()
                case 6:
                    manifest.tables.pop((source.varint(), source.varint()), None)
                case 7:
                    place = (source.varint(), source.varint())
                    manifest.tables[place] = Table(
                        source.varint(), source.counted(), source.counted()
                    )
                case tag:
                    message = f"the manifest {path.name} has an entry of unknown kind {tag}"
                    raise DamagedError(message)
    return manifest


# -- tables ------------------------------------------------------------------------------------


def table_entries(path: Path) -> Iterator[Entry]:
    """Yield the entries of a table, in order.

    The file is not memory-mapped: truncation by another program would kill the process (SIGBUS).
    """
    with regular_file(path).open("rb", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        if size < FOOTER:
            message = f"the table {path.name} is truncated"
            raise DamagedError(message)
        content = _part(file, size - FOOTER, FOOTER)
        footer = _Bytes(content)
        for _ in range(2):  # handle of the meta index
            footer.varint()
        index = _block(file, size, footer.varint(), footer.varint())
        if int.from_bytes(content[-8:], "little") != MAGIC:
            message = f"the table {path.name} is truncated or is no table"
            raise DamagedError(message)
        for _, handle in _block_entries(index):
            place = _Bytes(handle)
            for key, value in _block_entries(_block(file, size, place.varint(), place.varint())):
                if len(key) < 8:
                    message = f"the table {path.name} has a key without a sequence number"
                    raise DamagedError(message)
                yield key[:-8], -int.from_bytes(key[-8:], "little"), value


def _part(file: FileIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    content = file.read(size)
    if len(content) < size:
        message = "a table was truncated while it was read"
        raise DamagedError(message)
    return content


def _block(file: FileIO, end: int, offset: int, size: int) -> bytes:
    if offset + size + 5 > end:
        message = "a table is truncated"
        raise DamagedError(message)
    content = _part(file, offset, size + 1)
    block, kind = content[:-1], content[-1]
    if kind == PLAIN:
        return block
    if kind == SNAPPY:
        return unsnap(block)
    message = f"a table has the unknown compression type {kind}"
    raise DamagedError(message)


def _block_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values; a stored key omits the prefix shared with the previous key."""
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 - 4 * restarts
    if end < 0:
        message = "a block of a table is truncated"
        raise DamagedError(message)
    at, key = 0, b""
    while at < end:
        shared, own, size = block[at], block[at + 1], block[at + 2]
        if shared | own | size < 0x80:  # numbers of one byte each
            at += 3
        else:
            source = _Bytes(block, at)
            shared, own, size = source.varint(), source.varint(), source.varint()
            at = source.at
        begin, at = at + own, at + own + size
        if at > end:
            message = "a block of a table is truncated"
            raise DamagedError(message)
        key = key[:shared] + block[begin - own : begin]
        yield key, block[begin:at]


def unsnap(packed: bytes) -> bytes:
    """Decompress a Snappy block."""
    source = _Bytes(packed)
    size = source.varint()
    if size > LARGEST_BLOCK:
        message = f"a compressed block declares {size} bytes, more than {LARGEST_BLOCK}"
        raise DamagedError(message)
    at, end = source.at, len(packed)
    out = bytearray()
    while at < end and len(out) <= size:
        tag = packed[at]
        at += 1
        length = (tag >> 2) + 1
        if tag & 3 == 0:  # literal
            if length > 60:
                width = length - 60
                length = int.from_bytes(packed[at : at + width], "little") + 1
                at += width
            out += packed[at : at + length]
            at += length
            continue
        if tag & 3 == 1:
            offset = tag >> 5 << 8 | packed[at] if at < end else 0
            length = (tag >> 2 & 7) + 4
            at += 1
        else:
            width = tag & 3 if tag & 3 == 2 else 4
            offset = int.from_bytes(packed[at : at + width], "little")
            at += width
        start = len(out) - offset
        if start < 0 or not offset:
            message = "a compressed block copies from before its beginning"
            raise DamagedError(message)
        if offset < length:  # source and target overlap
            out += (out[start:] * (length // offset + 1))[:length]
        else:
            out += out[start : start + length]
    if len(out) != size or at > end:
        message = f"a compressed block does not have the declared {size} bytes"
        raise DamagedError(message)
    return bytes(out)
