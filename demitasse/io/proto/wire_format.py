"""Protobuf's binary encoding, as far as block copies and file checks need it; no numpy."""

from collections.abc import Iterator
from functools import cache
from typing import Any, Protocol

from google.protobuf.descriptor import Descriptor, FieldDescriptor

LARGEST = 2**31 - 1  # largest message that protobuf reads, in bytes

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
        tag, at = read_varint(view, at)
        number, kind = tag >> 3, tag & 7
        if kind == LENGTH:
            length, at = read_varint(view, at)
            if number == wanted and depth == 0:
                yield view[at : at + length]
            at += length
        elif kind == VARINT:
            _, at = read_varint(view, at)
        elif kind in (GROUP, GROUP_END):
            depth += 1 if kind == GROUP else -1
        else:
            at += 8 if kind == FIXED64 else 4


def fields(view: Bytes) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield number, wire type, and offsets of tag, contents and end of each field."""
    at = 0
    while at < len(view):
        start = at
        try:
            tag, at = read_varint(view, at)
            number, kind = tag >> 3, tag & 7
            body = at
            if kind == LENGTH:
                length, body = read_varint(view, at)
                at = body + length
            elif kind == VARINT:
                _, at = read_varint(view, at)
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


def read_varint(view: Bytes, at: int) -> tuple[int, int]:
    """Return the number of a varint at an offset, and the offset behind; inverse of ``varint``.

    A number beyond the end is an IndexError, one of more than ten bytes a ValueError.
    """
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


COST, COST_OF_FIELD, COST_OF_STRING = 32, 10, 48
"""Bytes of memory of a parsed message, of each field that its class has, and of a string."""

COST_OF_READING = {"V1LayerParameter": 900, "NodeProto": 900}
"""Class of messages -> bytes of what is made of each message: an upgraded layer, a node of ONNX."""

SPARE, FACTOR = 32 << 20, 20
"""Bytes of memory that messages may take in any case, and times the size of the file."""


def memory_limit(size: int) -> int:
    """Return the memory that the messages in a file of some bytes may take."""
    return SPARE + FACTOR * size


def message_cost(kind: Descriptor) -> int:
    """Return the memory of an empty message."""
    return COST + COST_OF_FIELD * len(kind.fields) + COST_OF_READING.get(kind.name, 0)


def memory_cost(encoded: bytes, kind: Any, most: int) -> int:
    """Return the memory of the parsed messages in an encoded message, without their values.

    An empty message takes two bytes of a file, and a thousand bytes of memory. Counting ends where
    the message is malformed, as protobuf reports the fault, or when the cost exceeds ``most``
    bytes.
    """
    cost = 0
    waiting = [(0, len(encoded), kind)]
    while waiting and cost <= most:
        at, end, kind = waiting.pop()
        inner = _message_fields(kind)
        groups = 0
        try:
            while at < end and cost <= most:
                tag = encoded[at]
                at += 1
                if tag > 0x7F:
                    tag, at = read_varint(encoded, at - 1)
                wire = tag & 7
                if wire == LENGTH:
                    length = encoded[at]
                    at += 1
                    if length > 0x7F:
                        length, at = read_varint(encoded, at - 1)
                    found = inner.get(tag >> 3) if not groups else None
                    if found is not None:
                        cost += found[1]
                        if length and found[0] is not None:
                            waiting.append((at, at + length, found[0]))
                    at += length
                elif wire == VARINT:
                    while encoded[at] > 0x7F:
                        at += 1
                    at += 1
                elif wire in (GROUP, GROUP_END):
                    groups += 1 if wire == GROUP else -1
                else:
                    at += 8 if wire == FIXED64 else 4
        except (IndexError, ValueError):
            break
    return cost


@cache
def _message_fields(kind: Descriptor) -> dict[int, tuple[Descriptor | None, int]]:
    """Return class and cost of each field of messages, and of strings (None), by number."""
    found: dict[int, tuple[Descriptor | None, int]] = {}
    for field in kind.fields:
        inner = field.message_type
        if inner is not None:
            found[field.number] = inner, message_cost(inner)
        elif field.type in {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}:
            found[field.number] = None, COST_OF_STRING
    return found
