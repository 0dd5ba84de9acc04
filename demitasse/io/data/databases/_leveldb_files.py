"""Files of LevelDB, without the LevelDB library: logs, manifest and tables, read and written.

The reader does not verify checksums; LevelDB verifies them on request only.

Each commit writes one table; the manifest lists the table after fsync. An interrupted database
keeps all commits before. Tables are not compressed: images hardly shrink. Tables with increasing
keys go to the last level, so LevelDB has nothing to compact.

Checksums are CRC-32C, computed over many bytes in parallel. A checksum without its initial value is
linear over bits: crc(a + b) is crc(a), advanced by len(b) zero bytes, XOR crc(b). The bytes are
split into lanes of equal length, all lanes go through the tables in parallel, and neighbours are
combined until one checksum is left. The initial value goes through zero bytes of the same length.

Source: LevelDB, ``doc/log_format.md``, ``doc/table_format.md``, ``db/version_edit.cc``,
``util/crc32c.h`` (mask); Snappy, ``format_description.txt``; RFC 3720, appendix B.4 (polynomial).
"""

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from io import FileIO
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from demitasse.core.atomic import write_bytes
from demitasse.core.paths import read_bytes, regular_file
from demitasse.io.data.databases.database import DamagedError, check
from demitasse.io.proto.wire_format import read_varint, varint

LOG_BLOCK = 32 * 1024
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4

ORDER = b"leveldb.BytewiseComparator"

DELETION, VALUE = 0, 1
FOOTER, MAGIC = 48, 0xDB4775248B80FB57
PLAIN, SNAPPY = 0, 1
LARGEST_BLOCK = 1 << 31

Entry = tuple[bytes, int, bytes]
"""User key, minus (sequence number * 256 + kind), value; sorted entries are newest first.

The two numbers behind the user key, in eight bytes, make the internal key of a table."""


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
        try:
            value, self.at = read_varint(self.content, self.at)
        except (IndexError, ValueError) as error:
            message = "a number does not end"
            raise DamagedError(message) from error
        return value

    def counted(self) -> bytes:
        return self.take(self.varint())


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
                    order = source.counted()
                    check(order == ORDER, f"keys are sorted by another comparator, {order!r}")
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


def table_entries(path: Path) -> Iterator[Entry]:
    """Yield the entries of a table, in order.

    The file is not memory-mapped: truncation by another program would kill the process (SIGBUS).
    """
    with regular_file(path).open("rb", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        check(size >= FOOTER, f"the table {path.name} is truncated")
        content = _part(file, size - FOOTER, FOOTER)
        footer = _Bytes(content)
        for _ in range(2):  # handle of the meta index
            footer.varint()
        index = _block(file, size, footer.varint(), footer.varint())
        magic = int.from_bytes(content[-8:], "little")
        check(magic == MAGIC, f"the table {path.name} is truncated or is no table")
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
    check(len(content) == size, "a table was truncated while it was read")
    return content


def _block(file: FileIO, end: int, offset: int, size: int) -> bytes:
    check(offset + size + 5 <= end, "a table is truncated")
    content = _part(file, offset, size + 1)
    block, kind = content[:-1], content[-1]
    check(kind in {PLAIN, SNAPPY}, f"a table has the unknown compression type {kind}")
    return block if kind == PLAIN else unsnap(block)


def _block_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values; a stored key omits the prefix shared with the previous key."""
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 - 4 * restarts
    check(end >= 0, "a block of a table is truncated")
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
    too_large = f"a compressed block declares {size} bytes, more than {LARGEST_BLOCK}"
    check(size <= LARGEST_BLOCK, too_large)
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
    right_size = len(out) == size and at <= end
    check(right_size, f"a compressed block does not have the declared {size} bytes")
    return bytes(out)


POLYNOMIAL = 0x82F63B78  # bits in reverse
ALL = 0xFFFFFFFF
LANE = 64  # bytes per lane: long enough that combining is cheap, short enough for many lanes

MASK = 0xA282EAD8


def crc32c(content: bytes) -> int:
    """Return the checksum of ``content``."""
    size = len(content)
    initial = np.array([ALL], np.uint32)
    for power in range(size.bit_length()):
        if size >> power & 1:
            initial = _advance(initial, power)
    lanes = max(1, -(-size // LANE))
    padded = np.zeros(lanes * LANE, np.uint8)  # zeros in front change nothing
    padded[len(padded) - size :] = np.frombuffer(content, np.uint8)
    words = np.ascontiguousarray(padded.view("<u4").reshape(lanes, LANE // 4).T)
    state = np.zeros(lanes, np.uint32)
    for column in words:
        state = _advance(state ^ column, 2)
    power = LANE.bit_length() - 1
    while len(state) > 1:
        if len(state) % 2:
            state = np.concatenate([np.zeros(1, np.uint32), state])
        state = _advance(state[::2], power) ^ state[1::2]
        power += 1
    return int(state[0] ^ initial[0]) ^ ALL


def masked(checksum: int) -> int:
    """Return a checksum as LevelDB stores it; masking avoids checksums of checksums."""
    return ((checksum >> 15 | checksum << 17) + MASK) & ALL


def _advance(state: np.ndarray, power: int) -> np.ndarray:
    """Return checksums advanced by ``2 ** power`` zero bytes. Shapes: (n,), uint32."""
    low, high = _tables(power)
    return np.asarray(low.take(state & 0xFFFF) ^ high.take(state >> 16))


@cache
def _tables(power: int) -> np.ndarray:
    """Return the advanced value for each 16-bit half of a checksum. Shape: (2, 65536), uint32."""
    halves = np.arange(1 << 16, dtype=np.uint32) << np.array([[0], [16]], np.uint32)
    if power:
        return _advance(_advance(halves.ravel(), power - 1), power - 1).reshape(halves.shape)
    for _ in range(8):
        halves = np.where(halves & 1, halves >> 1 ^ np.uint32(POLYNOMIAL), halves >> 1)
    return halves


BLOCK = 64 * 1024  # bytes per block of a table, as in databases written by Caffe
RESTART_EVERY = 16  # entries between two keys that are stored in full

LAST_LEVEL = 6


class LevelDbFiles:
    """Files of a LevelDB opened for writing; without a manifest, of a new database."""

    def __init__(self, folder: Path, manifest: Manifest | None = None) -> None:
        self._folder = folder
        self._manifest = manifest or Manifest(next_file=2)
        self._largest = max((t.last[:-8] for t in self._manifest.tables.values()), default=None)
        self._records = self._begin_manifest()

    def add(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """Add a table of records; later records replace earlier ones of the same key."""
        first = self._manifest.last_sequence + 1
        keyed = {
            key: (key + (sequence << 8 | VALUE).to_bytes(8, "little"), value)
            for sequence, (key, value) in enumerate(entries, first)
        }
        keys = sorted(keyed)
        self._manifest.last_sequence += len(entries)
        number = self._manifest.next_file
        self._manifest.next_file += 1
        size = _write_table(self._folder / f"{number:06d}.ldb", (keyed[key] for key in keys))
        in_order = self._largest is None or keys[0] > self._largest
        place = (LAST_LEVEL if in_order else 0, number)
        table = Table(size, keyed[keys[0]][0], keyed[keys[-1]][0])
        self._manifest.tables[place] = table
        self._largest = max(keys[-1], self._largest or b"")
        self._records.add(_edit(self._manifest, [(place, table)]))

    def close(self) -> None:
        """Close the manifest; all added records are on disk already."""
        self._records.close()

    def _begin_manifest(self) -> "_Log":
        """Write a manifest of the present files, and let CURRENT name the new manifest."""
        name = f"MANIFEST-{self._manifest.next_file:06d}"
        self._manifest.next_file += 1
        with ExitStack() as stack:
            log = _Log(stack.enter_context((self._folder / name).open("xb")))
            header = varint(1) + _length_prefixed(ORDER)
            log.add(header + _edit(self._manifest, self._manifest.tables.items()))
            write_bytes(self._folder / "CURRENT", f"{name}\n".encode())
            for old in self._folder.glob("MANIFEST-*"):
                if old.name != name:
                    old.unlink()
            stack.pop_all()  # the file stays open
        return log


class _Log:
    """Log records with checksums; no fragment crosses the end of a block of 32 KiB."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def add(self, record: bytes) -> None:
        begun = False
        while True:
            room = LOG_BLOCK - self._file.tell() % LOG_BLOCK
            if room < 7:
                self._file.write(bytes(room))
                continue
            part, record = record[: room - 7], record[room - 7 :]
            kind = (MIDDLE if record else LAST) if begun else (FIRST if record else FULL)
            checksum = masked(crc32c(bytes([kind]) + part))
            self._file.write(struct.pack("<IHB", checksum, len(part), kind) + part)
            begun = True
            if not record:
                break
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class _Block:
    """Sorted entries; each key omits the prefix shared with the previous key."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._restarts: list[int] = []
        self._count = 0
        self.size = 0
        self.last = b""

    def add(self, key: bytes, value: bytes) -> None:
        shared = 0
        if self._count % RESTART_EVERY:
            same = takewhile(lambda pair: pair[0] == pair[1], zip(key, self.last, strict=False))
            shared = sum(1 for _ in same)
        else:
            self._restarts.append(self.size)
        head = varint(shared) + varint(len(key) - shared) + varint(len(value))
        self._parts += (head, key[shared:], value)
        self.size += len(head) + len(key) - shared + len(value)
        self._count += 1
        self.last = key

    def content(self) -> bytes:
        restarts = self._restarts or [0]
        ends = struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))
        return b"".join([*self._parts, ends])


def _write_table(path: Path, entries: Iterable[tuple[bytes, bytes]]) -> int:
    """Write sorted entries as a table; return the size in bytes."""
    with path.open("wb") as file:
        index, block = _Block(), _Block()
        for key, value in entries:
            block.add(key, value)
            if block.size >= BLOCK:
                index.add(key, _write_block(file, block))
                block = _Block()
        if block.size:
            index.add(block.last, _write_block(file, block))
        handles = _write_block(file, _Block()) + _write_block(file, index)
        file.write(handles.ljust(FOOTER - 8, b"\0") + MAGIC.to_bytes(8, "little"))
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def _write_block(file: BinaryIO, block: _Block) -> bytes:
    """Write a block with its checksum; return the handle: offset and size."""
    content, kind = block.content(), bytes([PLAIN])
    handle = varint(file.tell()) + varint(len(content))
    checked = content + kind
    file.write(checked + masked(crc32c(checked)).to_bytes(4, "little"))
    return handle


def _edit(manifest: Manifest, tables: Iterable[tuple[tuple[int, int], Table]]) -> bytes:
    """Return the manifest record that adds tables."""
    numbers = {2: manifest.log_number, 9: 0, 3: manifest.next_file, 4: manifest.last_sequence}
    parts = [varint(tag) + varint(number) for tag, number in numbers.items()]
    for (level, number), table in tables:
        parts += (varint(7), varint(level), varint(number), varint(table.size))
        parts += (_length_prefixed(table.first), _length_prefixed(table.last))
    return b"".join(parts)


def _length_prefixed(content: bytes) -> bytes:
    return varint(len(content)) + content
