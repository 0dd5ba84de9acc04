"""Single arrays in NumPy's ``.npy`` format, read without evaluating their headers.

Source: NumPy, ``numpy/lib/format.py``.
"""

from __future__ import annotations

import math
import re
import struct
from pathlib import Path
from typing import IO

import numpy as np

from demitasse.core.paths import regular_file

__all__ = ["read_array", "read_npy"]

MAGIC = b"\x93NUMPY"
LENGTHS = {1: "<H", 2: "<I"}
"""Version -> encoding of the header's length."""

LONGEST_HEADER = 10_000  # bytes, NumPy's own limit
HEADER = re.compile(
    rb"\{ *'descr': *'([<>|=]?(?:[fiub][0-9]{1,2}|(U)[1-9][0-9]{0,8}))',"
    rb" *'fortran_order': *(True|False),"
    rb" *'shape': *\(((?:[0-9]{1,18}L?, *)*(?:[0-9]{1,18}L?)?)\),? *\}\s*"
)
PART = 1 << 20  # bytes per read


def read_npy(path: Path) -> np.ndarray:
    """Return the array in a file.

    Raises:
        OSError: The file cannot be opened.
        ValueError: The file is no array of numbers, or is too short for its declared shape.
    """
    with regular_file(path).open("rb") as file:
        return read_array(file, path.stat().st_size)


def read_array(file: IO[bytes], size: int, *, texts: bool = False) -> np.ndarray:
    """Return the array in an open file.

    Args:
        file: Positioned at the array.
        size: Number of bytes available.
        texts: Allow arrays of strings.

    Raises:
        ValueError: This is no array of numbers, or its declared shape exceeds ``size``.
    """
    start = file.read(8)
    if len(start) < 8 or start[:6] != MAGIC or start[6] not in LENGTHS:
        message = "this is no array in NumPy's format, or has an unsupported version"
        raise ValueError(message)
    form = LENGTHS[start[6]]
    field = file.read(struct.calcsize(form))
    (length,) = struct.unpack(form, field) if len(field) == struct.calcsize(form) else (0,)
    found = HEADER.fullmatch(file.read(min(length, LONGEST_HEADER)))
    if found is None or (found[2] and not texts):
        message = "its header does not describe an array of numbers"
        raise ValueError(message)
    try:
        kind = np.dtype(found[1].decode())
    except TypeError:
        message = f"its header has the unknown type {found[1].decode()}"
        raise ValueError(message) from None
    shape = tuple(int(axis.rstrip(b"L ")) for axis in found[4].split(b",") if axis.strip())
    count = math.prod(shape)
    if count * kind.itemsize > size - len(start) - len(field) - length:
        message = f"its header declares the shape {shape}; the file is too short"
        raise ValueError(message)
    values = np.empty(count, kind)
    _fill(values.view(np.uint8), file)
    return values.reshape(shape, order="F" if found[3] == b"True" else "C")


def _fill(room: np.ndarray, file: IO[bytes]) -> None:
    """Fill a buffer in parts; a member of an archive would be copied as a whole."""
    at = 0
    while at < len(room):
        part = file.read(min(PART, len(room) - at))
        if not part:
            message = f"it ends after {at} of {len(room)} bytes"
            raise ValueError(message)
        room[at : at + len(part)] = np.frombuffer(part, np.uint8)
        at += len(part)
