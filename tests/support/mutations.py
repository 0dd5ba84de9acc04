"""Ways to damage a file, for fuzzing: each is a small tuple, so that it can be found and shrunk."""

import random
import re
from collections.abc import Callable, Sequence
from typing import Any

from fields import is_repeated
from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Error, Message
from reader import Reader

BYTES = (
    "cut", "flip", "byte", "bomb", "copy", "drop", "repeat", "splice", "word", "insert", "nest",
    "twice", "zeros",
)  # fmt: skip
FORMS = ("token", "digits", "wire", "place")
KINDS = (*BYTES, *FORMS, *FORMS, "field", "field", "field", "field")
BIG = 2**32

Change = tuple[str, int, int, int]

WORDS = [
    b"{", b"}", b"<", b">", b"[", b"]", b'"', b"'", b"\\", b"#", b":", b",", b";", b"\n", b"\0",
    b"-", b"nan", b"inf", b"1e999", b"-1", b"0", b"0x", b"99999999999999999999", b"true",
    b"layer {", b"layers {", b"blobs {", b"type: ", b"input: ", b"input_dim: ", b"data: ",
    b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"[type.googleapis.com/x] {", b"\\U0010ffff",
    b"/../../", b"\xe2\x80\xae", b"\\ud800", b"\xff\xfe<\0", b"<!DOCTYPE a [", b"&a;", b"Infinity",
    b"# 1", b"\x1f\x8b", b"\x89HDF\r\n\x1a\n", b"\xff\xd8\xff", b"\x89PNG", b"%!PS",
]  # fmt: skip
"""What a file may suddenly say."""

OPENING = [
    b"{", b"[", b"<", b"(", b'{"a":', b"[[", b"layer {", b"a {", b"<a>", b"<a b='", b"[a.",
    b"a = [", b"\x0a\x80\x80\x01", b"\xa2\x06\xff\x7f", b"\x0b",
]  # fmt: skip
"""What begins a part within a part."""

LENGTHS = [
    b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f", b"\xff" * 9 + b"\x01",
    b"\x80" * 12, b"\xff" * 8, b"\x00" * 8, b"\xff\xff\xff\x7f", b"\x7f\xff\xff\xff",
    b"\x00\x00\x00\x80", b"\xfe\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x10",
]  # fmt: skip
"""Lengths and counts that no small file has room for, as varints and in both byte orders."""


def random_changes(rng: random.Random) -> list[Change]:
    """Some changes, drawn; mostly one or two."""
    count = rng.choice((1, 1, 1, 2, 2, 3, 6))
    return [
        (rng.choice(KINDS), rng.randrange(BIG), rng.randrange(BIG), rng.randrange(BIG))
        for _ in range(count)
    ]


def damaged_file(reader: Reader, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Return one of a reader's files after some changes, or a file that is drawn for it."""
    if reader.draw:
        return reader.draw(rng)
    content = damaged(rng.choice(reader.files), random_changes(rng), others, reader.form)
    return reader.repair(content) if reader.repair and rng.random() < 0.5 else content


def damaged_in_order(files: Sequence[bytes], number: int) -> bytes:
    """Return a file cut at some byte, or with one byte changed: numbers from 0 on are all of them.

    The order is a scattered one, so that a few numbers are from everywhere; after all are done it
    begins anew.
    """
    ways = len(WAYS)
    number = number * 2_654_435_761 % (ways * sum(len(file) for file in files) or 1)
    for file in files:
        if number < ways * len(file):
            at, way = divmod(number, ways)
            return WAYS[way](file, at)
        number -= ways * len(file)
    return b""


def _with_byte(change: Callable[[int], int]) -> Callable[[bytes, int], bytes]:
    return lambda file, at: file[:at] + bytes([change(file[at]) & 255]) + file[at + 1 :]


WAYS: list[Callable[[bytes, int], bytes]] = [
    lambda file, at: file[:at],
    *(_with_byte(change) for change in (
        lambda byte: 0, lambda byte: 255, lambda byte: byte ^ 128, lambda byte: byte ^ 16,
        lambda byte: byte + 1, lambda byte: byte - 1,
    )),
]  # fmt: skip
"""What is done at every byte of a file."""


def damaged(
    content: bytes,
    all_changes: Sequence[Change],
    others: Sequence[bytes],
    form: tuple[type[Message], bool] | None = None,
) -> bytes:
    """Return a file after some changes.

    Args:
        content: The file.
        all_changes: What is done to it, in order.
        others: What parts may be taken from.
        form: The class of message it is, and whether as text; else its fields are not changed.
    """
    for kind, a, b, c in all_changes:
        if kind == "field" and form:
            content = _with_another_field(content, form, random.Random(a ^ b << 8 ^ c << 16))
        elif kind in FORMS:
            content = FORM_CHANGES[kind](content, random.Random(a ^ b << 8 ^ c << 16))
        else:
            way = BYTES[(a + b) % len(BYTES)] if kind == "field" else kind
            content = _changed(content, way, a, b, c, others)
    return content


def _changed(content: bytes, kind: str, a: int, b: int, c: int, others: Sequence[bytes]) -> bytes:
    size = len(content)
    at = a % (size + 1)
    length = 1 + b % max(1, min(size, 1 << (1 + c % 12)))
    match kind:
        case "cut":
            return content[:at]
        case "flip" if size:
            at %= size
            return content[:at] + bytes([content[at] ^ 1 << b % 8]) + content[at + 1 :]
        case "byte" if size:
            at %= size
            return content[:at] + bytes([b % 256]) + content[at + 1 :]
        case "bomb":
            bomb = LENGTHS[b % len(LENGTHS)]
            return content[:at] + bomb + content[at + (len(bomb) if c % 2 else 0) :]
        case "copy":
            to = c % (size + 1)
            return content[:to] + content[at : at + length] + content[to:]
        case "drop":
            return content[:at] + content[at + length :]
        case "repeat":
            return content[:at] + content[at : at + length] * (2 + c % 30) + content[at + length :]
        case "splice" if others:
            other = others[b % len(others)]
            return content[:at] + other[c % (len(other) + 1) :]
        case "word":
            return content[:at] + WORDS[b % len(WORDS)] + content[at + c % 4 :]
        case "nest":
            depth = (30, 300, 3000, 30_000)[c % 4]
            return content[:at] + OPENING[b % len(OPENING)] * depth + content[at:]
        case "twice":
            return content + content[c % 2 * at :]
        case "zeros":
            return content[:at] + bytes(1 << b % 17) + content[at + (c % 2 << b % 17) :]
        case "insert":
            return content[:at] + bytes([b >> shift & 255 for shift in (0, 8, 16)]) + content[at:]
    return content


# -- parts that the format gives a meaning -----------------------------------------------------

TOKEN = re.compile(rb"[A-Za-z_]\w*|\d[\w.+-]*|\"[^\"\n]*\"|\s+|.", re.DOTALL)
DIGITS = re.compile(rb"\d+")
NUMBERS = [
    b"0", b"-1", b"1", b"255", b"256", b"65536", b"2147483647", b"2147483648", b"4294967295",
    b"4294967296", b"9223372036854775807", b"9223372036854775808", b"18446744073709551616",
    b"1e999", b"-1e999", b"nan", b"1e-400", b"0.5", b"9" * 60, b"9" * 5000, b"00", b"1.2.3",
    b"0x10",
]  # fmt: skip
PLACES = re.compile(
    rb"OHDR|OCHK|TREE|HEAP|SNOD|GCOL|FRHP|BTHD|BTLF|FADB|\x89HDF|PK\x01\x02|PK\x03\x04|PK\x05\x06|"
    rb"IHDR|PLTE|IDAT|tRNS|\xff[\xc0-\xdf]|II\*\x00|MM\x00\*|RIFF|VP8|\xde\xc0\xef\xbe|\x93NUMPY"
)
PAGE = 4096  # bytes of a page of an LMDB


def _with_another_token(content: bytes, rng: random.Random) -> bytes:
    """Leave out, repeat, exchange or replace words of a text."""
    words = TOKEN.findall(content[:20_000])
    if not words:
        return content
    at, other = rng.randrange(len(words)), rng.randrange(len(words))
    match rng.randrange(5):
        case 0:
            del words[at]
        case 1:
            words.insert(at, words[other])
        case 2:
            words[at], words[other] = words[other], words[at]
        case 3:
            words[at] = rng.choice(NUMBERS + WORDS)
        case 4:
            words[at] *= rng.choice((2, 3, 50, 700))
    return b"".join(words) + content[20_000:]


def _with_another_number(content: bytes, rng: random.Random) -> bytes:
    """Replace a number that is written with digits."""
    found = list(DIGITS.finditer(content))
    if not found:
        return content
    one = rng.choice(found)
    return content[: one.start()] + rng.choice(NUMBERS) + content[one.end() :]


def _with_another_place(content: bytes, rng: random.Random) -> bytes:
    """Change bytes near the beginning of a part: a header, a page, a chunk, a footer."""
    starts = [0, max(0, len(content) - 48), *(one.start() for one in PLACES.finditer(content))]
    starts += range(PAGE, len(content), PAGE)
    at = rng.choice(starts) + rng.randrange(rng.choice((8, 24, 64)))
    width = rng.choice((1, 2, 4, 8))
    value = rng.choice(
        (0, 1, (1 << 8 * width) - 1, 1 << 8 * width - 1, rng.randrange(len(content) + 1),
         rng.choice(starts), rng.randrange(256), rng.randrange(16) * PAGE)
    )  # fmt: skip
    encoded = (value % (1 << 8 * width)).to_bytes(width, rng.choice(("little", "little", "big")))
    return content[:at] + encoded + content[at + width :]


def _with_another_wire(content: bytes, rng: random.Random) -> bytes:
    """Change a tag, a length or a payload somewhere in a binary message."""
    fields = _wire(content, 0, len(content), 0)
    if not fields:
        return content
    start, body, end = rng.choice(fields)
    match rng.randrange(6):
        case 0:  # another tag
            return (
                content[:start]
                + _varint(rng.randrange(1 << rng.choice((7, 14, 35))))
                + content[body:end]
                + content[end:]
            )
        case 1:  # another length
            return (
                content[: start + 1]
                + _varint(rng.choice((0, end - body + 1, 1 << 31, 1 << 63, rng.randrange(300))))
                + content[body:]
            )
        case 2:  # the field again
            return content[:end] + content[start:end] * rng.choice((1, 2, 60)) + content[end:]
        case 3:  # without it
            return content[:start] + content[end:]
        case 4:  # in another one's place
            to = rng.choice(fields)[0]
            return content[:to] + content[start:end] + content[to:]
        case _:  # in itself, deeper and deeper
            inner = content[start:end]
            tag = content[start : start + 1]
            for _ in range(rng.choice((1, 5, 120))):
                inner = tag + _varint(len(inner)) + inner
            return content[:start] + inner + content[end:]


def _wire(content: bytes, at: int, end: int, depth: int) -> list[tuple[int, int, int]]:
    """Return the fields of a message: where each begins, its payload begins, and it ends."""
    found: list[tuple[int, int, int]] = []
    while at < end and len(found) < 400:
        start = at
        tag, at = _read_varint(content, at)
        match tag & 7:
            case 0:
                _, stop = _read_varint(content, at)
            case 1:
                stop = at + 8
            case 2:
                length, at = _read_varint(content, at)
                stop = at + length
            case 5:
                stop = at + 4
            case _:
                return found
        if stop > end or tag < 8:
            return found
        found.append((start, at, stop))
        if tag & 7 == 2 and depth < 6:
            found += _wire(content, at, stop, depth + 1)
        at = stop
    return found


def _read_varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(content) and shift < 70:
        value |= (content[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if content[at - 1] < 128:
            break
    return value, at


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


FORM_CHANGES = {
    "token": _with_another_token,
    "digits": _with_another_number,
    "wire": _with_another_wire,
    "place": _with_another_place,
}


# -- whole messages with impossible fields -----------------------------------------------------

INTEGERS = [0, 1, -1, 2, 3, 7, 255, 2**31 - 1, -(2**31), 2**31, 2**32 - 1, 2**62, -(2**63)]
REALS = [0.0, -0.0, 1.0, -1.0, 1e-45, 3e38, float("inf"), float("-inf"), float("nan")]
STRINGS = ["", "a", "/", "..", "a/b", "\0", "\n", "x" * 300, "\u6570", "ip1", "ip2", "data", "0"]


def _with_another_field(
    content: bytes, form: tuple[type[Message], bool], rng: random.Random
) -> bytes:
    """Change a field somewhere in a message, so that the file stays well-formed."""
    message = form[0]()
    try:
        if form[1]:
            text_format.Parse(content.decode(), message)
        else:
            message.ParseFromString(content)
    except (Error, text_format.ParseError, ValueError):
        return content
    target: Any = message
    for _ in range(rng.randrange(6)):  # how deep
        inner = [
            part
            for field, value in target.ListFields()
            if field.type == FieldDescriptor.TYPE_MESSAGE
            for part in ([value] if isinstance(value, Message) else value)
        ]
        if not inner:
            break
        target = rng.choice(inner)
    present = [field for field, _ in target.ListFields()]
    fields = list(target.DESCRIPTOR.fields)
    if fields:
        _change_field(
            target, rng.choice(present if present and rng.random() < 0.7 else fields), rng
        )
    try:
        text = text_format.MessageToString(message) if form[1] else ""
        return text.encode() if form[1] else message.SerializePartialToString()
    except ValueError:
        return content


def _change_field(message: Any, field: Any, rng: random.Random) -> None:
    is_message = field.type == FieldDescriptor.TYPE_MESSAGE
    value = getattr(message, field.name)
    if rng.random() < 0.2:
        message.ClearField(field.name)
    elif not is_repeated(field):
        value.SetInParent() if is_message else _set(message, field, _value(field, rng))
    elif is_message:
        what = rng.randrange(4)
        if what == 0 or not value:
            value.add()
        elif what == 1:
            del value[rng.randrange(len(value))]
        else:
            value.add().CopyFrom(rng.choice(value))
    else:
        many = rng.choice((1, 1, 2, 5, 40))
        for _ in range(many):
            try:
                value.append(_value(field, rng))
            except (ValueError, TypeError):
                return


def _set(message: Any, field: Any, value: Any) -> None:
    try:
        setattr(message, field.name, value)
    except (ValueError, TypeError):  # out of the range of this field
        return


def _value(field: Any, rng: random.Random) -> Any:
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            return rng.choice(STRINGS)
        case FieldDescriptor.TYPE_BYTES:
            return rng.randbytes(rng.choice((0, 1, 2, 3, 4, 8, 17, 216)))
        case FieldDescriptor.TYPE_FLOAT | FieldDescriptor.TYPE_DOUBLE:
            return rng.choice(REALS)
        case FieldDescriptor.TYPE_BOOL:
            return rng.random() < 0.5
        case FieldDescriptor.TYPE_ENUM:
            return rng.choice(field.enum_type.values).number
    return rng.choice(INTEGERS)
