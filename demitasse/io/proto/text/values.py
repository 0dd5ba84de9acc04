"""Conversion of text to numbers, bools and strings, as by protobuf.

Each function raises ValueError with the expected form.
"""

import math
import re

from demitasse.io.proto.text.faults import short

__all__ = ["boolean", "integer", "real", "unescape"]

INTEGER = re.compile(r"0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*")
DECIMAL = re.compile(r"(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?")
ESCAPE = re.compile(
    r"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))"
)
SIMPLE = {
    "a": b"\a", "b": b"\b", "f": b"\f", "n": b"\n", "r": b"\r", "t": b"\t", "v": b"\v",
    "\\": b"\\", "'": b"'", '"': b'"', "?": b"?",
}  # fmt: skip
WORDS = {"true": True, "True": True, "t": True, "false": False, "False": False, "f": False}


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
    if text in WORDS:
        return WORDS[text]
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
