"""Writer of LevelDB files: tables, manifest and CURRENT.

Each commit writes one table; the manifest lists the table after fsync. An interrupted database
keeps all commits before. Tables are not compressed: images hardly shrink. Tables with increasing
keys go to the last level, so LevelDB has nothing to compact.

Checksums are CRC-32C, computed over many bytes in parallel. A checksum without its initial value is
linear over bits: crc(a + b) is crc(a), advanced by len(b) zero bytes, XOR crc(b). The bytes are
split into lanes of equal length, all lanes go through the tables in parallel, and neighbours are
combined until one checksum is left.

Source: LevelDB, ``doc/log_format.md``, ``doc/table_format.md``, ``db/version_edit.cc``,
``util/crc32c.h`` (mask); RFC 3720, appendix B.4 (polynomial).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import BinaryIO

import numpy as np

from demitasse.core.atomic import atomic_write
from demitasse.io.data.databases._leveldb_reader import (
    FIRST,
    FOOTER,
    FULL,
    LAST,
    LOG_BLOCK,
    MAGIC,
    MIDDLE,
    ORDER,
    PLAIN,
    VALUE,
    Manifest,
    Table,
)
from demitasse.io.proto.wire_format import varint

POLYNOMIAL = 0x82F63B78  # bits in reverse
ALL = 0xFFFFFFFF
LANE = 64
"""Bytes per lane: long enough that combining is cheap, short enough for many lanes."""

MASK = 0xA282EAD8


def crc32c(content: bytes) -> int:
    """Return the checksum of ``content``."""
    if len(content) < 4:
        return _byte_by_byte(content)
    lanes = -(-len(content) // LANE)
    padded = np.zeros(lanes * LANE, np.uint8)  # zeros in front change nothing
    padded[len(padded) - len(content) :] = np.frombuffer(content, np.uint8)
    padded[len(padded) - len(content) :][:4] ^= 0xFF  # the initial value
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
    return int(state[0]) ^ ALL


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


def _byte_by_byte(content: bytes) -> int:
    state = ALL
    for byte in content:
        state = int(_tables(0)[0][(state ^ byte) & 0xFF]) ^ state >> 8
    return state ^ ALL


BLOCK = 64 * 1024
"""Bytes per block of a table, as in databases written by Caffe."""

RESTART_EVERY = 16
"""Entries between two keys that are stored in full."""

LAST_LEVEL = 6


class LevelDbFiles:
    """Files of a LevelDB opened for writing.

    Args:
        folder: An existing folder.
        manifest: Manifest of the existing database, or None.
    """

    def __init__(self, folder: Path, manifest: Manifest | None = None) -> None:
        self._folder = folder
        self._manifest = manifest or Manifest(next_file=2)
        self._largest = max((t.last[:-8] for t in self._manifest.tables.values()), default=None)
        self._records = self._begin_manifest()

    def add(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """Add a table of records; later records replace earlier ones of the same key.

        Raises:
            OSError: The table cannot be written.
        """
        first = self._manifest.last_sequence + 1
        keyed = {
            key: (_internal_key(key, sequence), value)
            for sequence, (key, value) in enumerate(entries, first)
        }
        keys = sorted(keyed)
        self._manifest.last_sequence += len(entries)
        number = self._next_number()
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

    def _begin_manifest(self) -> _Log:
        """Write a manifest of the present files, and let CURRENT name the new manifest."""
        number = self._next_number()
        name = f"MANIFEST-{number:06d}"
        log = _Log((self._folder / name).open("xb"))
        header = varint(1) + _length_prefixed(ORDER)
        log.add(header + _edit(self._manifest, self._manifest.tables.items()))
        with atomic_write(self._folder / "CURRENT") as file:
            file.write(f"{name}\n".encode())
        for old in self._folder.glob("MANIFEST-*"):
            if old.name != name:
                old.unlink()
        return log

    def _next_number(self) -> int:
        self._manifest.next_file += 1
        return self._manifest.next_file - 1


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
            shared = _common_prefix(key, self.last)
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


def _internal_key(key: bytes, sequence: int) -> bytes:
    """Return the internal key: user key, sequence number and kind."""
    return key + (sequence << 8 | VALUE).to_bytes(8, "little")


def _common_prefix(one: bytes, other: bytes) -> int:
    """Return the length of the common prefix."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def _length_prefixed(content: bytes) -> bytes:
    return varint(len(content)) + content
