"""Protobuf's binary encoding, as far as block copies and file checks need it; no numpy."""

from collections.abc import Iterator
from typing import Protocol

LARGEST = 2**31 - 1
"""Largest message that protobuf reads, in bytes."""

VARINT, FIXED64, LENGTH, GROUP, GROUP_END, FIXED32 = range(6)


class Bytes(Protocol):
    """Bytes in memory or in a file."""

    def __len__(self) -> int: ...

    def __getitem__(self, at: int, /) -> int: ...


def length_prefix(number: int, length: int) -> bytes:
    """Return the bytes before the contents of a length-delimited field."""
    return varint(number << 3 | LENGTH) + varint(length)


def payloads(encoded: bytes, wanted: int) -> Iterator[memoryview]:
    """Yield each occurrence of a length-delimited field of a well-formed message."""
    view = memoryview(encoded)
    at = depth = 0
    while at < len(view):
        tag, at = _read_varint(view, at)
        number, kind = tag >> 3, tag & 7
        if kind == LENGTH:
            length, at = _read_varint(view, at)
            if number == wanted and depth == 0:
                yield view[at : at + length]
            at += length
        elif kind == VARINT:
            _, at = _read_varint(view, at)
        elif kind in (GROUP, GROUP_END):
            depth += 1 if kind == GROUP else -1
        else:
            at += 8 if kind == FIXED64 else 4


def fields(view: Bytes) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield each field: number, wire type, and offsets of its tag, its contents and its end.

    Raises:
        ValueError: The message is malformed, or has groups.
    """
    at = 0
    while at < len(view):
        start = at
        try:
            tag, at = _read_varint(view, at)
            number, kind = tag >> 3, tag & 7
            body = at
            if kind == LENGTH:
                length, body = _read_varint(view, at)
                at = body + length
            elif kind == VARINT:
                _, at = _read_varint(view, at)
            elif kind in (FIXED64, FIXED32):
                at += 8 if kind == FIXED64 else 4
            else:
                message = f"unsupported wire type {kind}"
                raise ValueError(message)
        except IndexError:
            at = len(view) + 1
        if at > len(view) or not number:
            message = "a field exceeds the end of the message"
            raise ValueError(message)
        yield number, kind, start, body, at


def varint(value: int) -> bytes:
    """Encode a number of at least 0 as varint; LevelDB uses varints, too."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(view: Bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    message = "a number that does not end"
    raise ValueError(message)
