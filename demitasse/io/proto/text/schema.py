"""Field types of messages, and conversion of text to their values, as by protobuf."""

import math
import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from demitasse.io.proto.text.tokens import short
from demitasse.io.proto.wire_format import message_cost

INTEGER = re.compile(r"0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*")
DECIMAL = re.compile(r"(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?")
ESCAPE = re.compile(
    r"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))"
)
SIMPLE = {
    "a": b"\a", "b": b"\b", "f": b"\f", "n": b"\n", "r": b"\r", "t": b"\t", "v": b"\v",
    "\\": b"\\", "'": b"'", '"': b'"', "?": b"?",
}  # fmt: skip
BOOLS = {"true": True, "True": True, "t": True, "false": False, "False": False, "f": False}


def integer(text: str, negative: bool, low: int, high: int) -> int:
    """Parse a decimal, hexadecimal (0x1F) or octal (017) integer within bounds."""
    if not INTEGER.fullmatch(text):
        if DECIMAL.fullmatch(text):
            message = f"{short(text)} is not an integer"
        elif text.isdigit():
            message = f"{short(text)} begins with 0, so it is octal; 8 and 9 are no octal digits"
        else:
            message = f"expected an integer, found {short(text)!r}"
        raise ValueError(message)
    octal = text[0] == "0" and text.isdigit()
    try:
        value = int(text, 8 if octal else 0) * (-1 if negative else 1)
    except ValueError:  # Python limits the number of digits
        value = high + 1
    if not low <= value <= high:
        message = f"{'-' if negative else ''}{short(text)} is out of range: {low} to {high}"
        raise ValueError(message)
    return value


def real(text: str, negative: bool) -> float:
    """Parse a decimal number, optionally with suffix f, or inf, infinity or nan in any case."""
    word = text.lower()
    if word in {"inf", "infinity", "nan"}:
        value = math.nan if word == "nan" else math.inf
    elif DECIMAL.fullmatch(text):
        value = float(text.rstrip("fF"))
    else:
        message = f"expected a number, found {short(text)!r}"
        raise ValueError(message)
    return -value if negative else value


def boolean(text: str) -> bool:
    """Parse true, True, t, 1, false, False, f or 0."""
    if text in BOOLS:
        return BOOLS[text]
    if INTEGER.fullmatch(text) and set(text.lower()) <= set("0x1"):
        value = integer(text, False, 0, 2**64)
        if value <= 1:
            return value == 1
    message = f"expected true or false, found {short(text)!r}"
    raise ValueError(message)


def unescape(quoted: str) -> bytes:
    """Return the bytes of a quoted string; text outside escapes is encoded as UTF-8."""
    body = quoted[1:-1]
    if "\\" not in body:
        return body.encode("utf-8", "surrogateescape")
    result, at = bytearray(), 0
    for match in ESCAPE.finditer(body):
        result += body[at : match.start()].encode("utf-8", "surrogateescape")
        result += _escaped(match)
        at = match.end()
    result += body[at:].encode("utf-8", "surrogateescape")
    return bytes(result)


def _escaped(match: re.Match[str]) -> bytes:
    octal, hexadecimal, short, long, other = match.groups()
    if other is not None:
        if other not in SIMPLE:
            message = f"{match[0]} is no escape sequence; a backslash is written \\\\"
            raise ValueError(message)
        return SIMPLE[other]
    if octal or hexadecimal:
        code = int(octal, 8) if octal else int(hexadecimal, 16)
        if code > 0xFF:
            message = f"{match[0]} is more than one byte"
            raise ValueError(message)
        return bytes([code])
    try:
        return chr(int(short or long, 16)).encode()
    except (ValueError, UnicodeEncodeError):
        message = f"{match[0]} is no character"
        raise ValueError(message) from None


MESSAGE = FieldDescriptor.TYPE_MESSAGE
STRING, BYTES = FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES

INTEGERS = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
}
CONVERTERS: dict[int, Callable[[str, bool], float]] = {
    **{kind: partial(integer, low=low, high=high) for kind, (low, high) in INTEGERS.items()},
    FieldDescriptor.TYPE_FLOAT: real,
    FieldDescriptor.TYPE_DOUBLE: real,
    FieldDescriptor.TYPE_BOOL: lambda text, negative: boolean(f"-{text}" if negative else text),
}
WORDS = {
    MESSAGE: "a message in braces",
    STRING: "a string in quotes",
    BYTES: "a string in quotes",
    FieldDescriptor.TYPE_BOOL: "true or false",
    FieldDescriptor.TYPE_FLOAT: "a number",
    FieldDescriptor.TYPE_DOUBLE: "a number",
}


class Field:
    """A field of a message.

    Attributes:
        values: For an enum, its numbers by name; else empty.
        known: For an enum, its numbers.
        convert: For a number or a bool, converts text and sign to a value.
        cost: For a message, its bytes of memory.
    """

    def __init__(self, field: FieldDescriptor) -> None:
        self.name: str = field.name
        self.type: int = field.type
        self.repeated, self.required = _label(field)
        enum = field.enum_type
        self.values = {value.name: value.number for value in enum.values} if enum else {}
        self.known = frozenset(self.values.values())
        self.convert = CONVERTERS.get(self.type)
        self.cost = message_cost(field.message_type) if field.message_type else 0

    @property
    def wants(self) -> str:
        """Return the expected value as text, for messages."""
        if self.values:
            names = list(self.values)
            return f"one of {', '.join(names)}" if len(names) <= 8 else "one of its names"
        return WORDS.get(self.type, "an integer")


class Schema:
    """A message type, and for each of its message fields the names of the inner fields."""

    def __init__(self, descriptor: Descriptor) -> None:
        self.name: str = descriptor.name
        self.fields = {field.name: Field(field) for field in descriptor.fields}
        self.required = [field.name for field in self.fields.values() if field.required]
        self.inner = {
            field.name: [inner.name for inner in field.message_type.fields]
            for field in descriptor.fields
            if field.message_type is not None
        }


@cache
def schema(descriptor: Descriptor) -> Schema:
    """Return the schema of a message type."""
    return Schema(descriptor)


def _label(field: Any) -> tuple[bool, bool]:
    """Return (repeated, required); protobuf 5 and 6 name these differently."""
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated), bool(field.is_required)
    return field.label == field.LABEL_REPEATED, field.label == field.LABEL_REQUIRED
