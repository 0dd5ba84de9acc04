"""Ways to damage a file, for fuzzing: each is a small tuple, so that it can be found and shrunk."""

import random
from collections.abc import Sequence
from typing import Any

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Error, Message
from hypothesis import strategies as st

BYTES = ("cut", "flip", "byte", "bomb", "copy", "drop", "repeat", "splice", "word", "insert")
KINDS = (*BYTES, "field", "field", "field", "field")
BIG = 2**32

Change = tuple[str, int, int, int]

WORDS = [
    b"{", b"}", b"<", b">", b"[", b"]", b'"', b"'", b"\\", b"#", b":", b",", b";", b"\n", b"\0",
    b"-", b"nan", b"inf", b"1e999", b"-1", b"0", b"0x", b"99999999999999999999", b"true",
    b"layer {", b"layers {", b"blobs {", b"type: ", b"input: ", b"input_dim: ", b"data: ",
    b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"[type.googleapis.com/x] {", b"\\U0010ffff",
    b"# 1", b"\x1f\x8b", b"\x89HDF\r\n\x1a\n", b"\xff\xd8\xff", b"\x89PNG", b"%!PS",
]  # fmt: skip
"""What a file may suddenly say."""

LENGTHS = [
    b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f", b"\xff" * 9 + b"\x01",
    b"\x80" * 12, b"\xff" * 8, b"\x00" * 8, b"\xff\xff\xff\x7f", b"\x7f\xff\xff\xff",
    b"\x00\x00\x00\x80", b"\xfe\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x10",
]  # fmt: skip
"""Lengths and counts that no small file has room for, as varints and in both byte orders."""


def changes() -> st.SearchStrategy[list[Change]]:
    """Some changes, for hypothesis."""
    number = st.integers(0, BIG - 1)
    return st.lists(st.tuples(st.sampled_from(KINDS), number, number, number), max_size=4)


def random_changes(rng: random.Random) -> list[Change]:
    """Some changes, drawn; mostly one or two."""
    count = rng.choice((1, 1, 1, 2, 2, 3, 6))
    return [
        (rng.choice(KINDS), rng.randrange(BIG), rng.randrange(BIG), rng.randrange(BIG))
        for _ in range(count)
    ]


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
        case "insert":
            return content[:at] + bytes([b >> shift & 255 for shift in (0, 8, 16)]) + content[at:]
    return content


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
    elif not field.is_repeated:
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
