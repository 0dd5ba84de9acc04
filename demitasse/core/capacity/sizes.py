"""Sizes of memory as people read and write them."""

from __future__ import annotations

import re

__all__ = ["bytes_text", "read_size"]

UNITS = ("bytes", "KiB", "MiB", "GiB")

WRITTEN = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)(b|bytes?)?", re.IGNORECASE)

LARGEST = 2.0**64
"""Bytes beyond which a size is a mistake."""

POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def bytes_text(size: float) -> str:
    """Return a number of bytes as people read it, e.g. ``1.5 MiB``."""
    for unit in UNITS:
        if size < 1024 or unit == UNITS[-1]:
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"


def read_size(written: object) -> int:
    """Return the bytes that somebody has written: ``8GiB``, ``500 MB``, ``1.5g`` or a number.

    ``GiB`` and ``g`` alone count in 1024, ``GB`` in 1000.

    Raises:
        ValueError: It is no size.
    """
    found = WRITTEN.fullmatch(str(written).strip())
    if found is None or isinstance(written, bool):
        message = f"{written!r} is no size of memory; write 8GiB, 500MiB or a number of bytes"
        raise ValueError(message)
    number, letter, binary, byte = found.groups()
    base = 1000 if letter and byte and not binary else 1024
    size = float(number) * base ** POWERS[letter.lower()]
    if size > LARGEST:
        message = f"{written!r} is more memory than can be addressed; 0 is for no limit"
        raise ValueError(message)
    return int(size)
