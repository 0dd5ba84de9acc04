"""NumPy's ``.npy`` and ``.npz`` files, read without evaluating their headers.

Source: NumPy, ``numpy/lib/format.py``.
"""

import math
import re
import struct
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import IO

import numpy as np

from demitasse.core.atomic import atomic_write
from demitasse.core.paths import code_of, reason_of, regular_file
from demitasse.errors import WeightsError
from demitasse.io.data.databases.database import DEFLATES, check, check_memory

MAGIC = b"\x93NUMPY"
LENGTHS = {1: "<H", 2: "<I"}  # version -> encoding of the header's length

LONGEST_HEADER = 10_000  # bytes, NumPy's own limit
HEADER = re.compile(
    rb"\{ *'descr': *'([<>|=]?(?:[fiub][0-9]{1,2}|(U)[1-9][0-9]{0,8}))',"
    rb" *'fortran_order': *(True|False),"
    rb" *'shape': *\(((?:[0-9]{1,18}L?, *)*(?:[0-9]{1,18}L?)?)\),? *\}\s*"
)
PART = 1 << 20  # bytes per read


def read_npy(path: Path) -> np.ndarray:
    """Return the array in a file; a ValueError if there is no array of numbers."""
    with regular_file(path).open("rb") as file:
        return _read_array(file, path.stat().st_size)


def _read_array(file: IO[bytes], size: int, *, texts: bool = False) -> np.ndarray:
    """Return the array in the next ``size`` bytes of a file; with ``texts``, perhaps of strings."""
    start = file.read(8)
    known = len(start) == 8 and start[:6] == MAGIC and start[6] in LENGTHS
    check(known, "this is no array in NumPy's format, or has an unsupported version")
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
    fits = count * kind.itemsize <= size - len(start) - len(field) - length
    check(fits, f"its header declares the shape {shape}; the file is too short")
    values = np.empty(count, kind)
    target, at = values.view(np.uint8), 0
    while at < len(target):  # in parts: a member of an archive would be copied as a whole
        part = file.read(min(PART, len(target) - at))
        check(bool(part), f"it ends after {at} of {len(target)} bytes")
        target[at : at + len(part)] = np.frombuffer(part, np.uint8)
        at += len(part)
    return values.reshape(shape, order="F" if found[3] == b"True" else "C")


ENCRYPTED = 1  # flag bit of encrypted members


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file of weights by name."""
    try:
        return arrays_in(path)
    except (OSError, ValueError) as error:
        message = f"{path} cannot be read as weights: {reason_of(error, path)}"
        raise WeightsError(message, code=code_of(error), file=str(path)) from error


def arrays_in(
    path: Path, names: Collection[str] | None = None, *, texts: bool = False
) -> dict[str, np.ndarray]:
    """Return the arrays of a file by name, those of ``names`` or all, or raise ValueError."""
    try:
        with regular_file(path).open("rb") as file, zipfile.ZipFile(file) as archive:
            check_members(archive, path.stat().st_size)
            files = (one for one in archive.infolist() if not one.is_dir())
            members = {one.filename.removesuffix(".npy"): one for one in files}
            return {
                name: _array(archive, member, texts=texts)
                for name, member in members.items()
                if names is None or name in names
            }
    except (EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(str(error)) from error


def write_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write arrays, atomically."""
    with atomic_write(path) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def check_members(archive: zipfile.ZipFile, size: int) -> None:
    """Refuse members in an unsupported encoding, and members that share bytes."""
    stored = total = 0
    for member in archive.infolist():
        kinds = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: DEFLATES}
        growth = kinds.get(member.compress_type)
        if growth is None or member.flag_bits & ENCRYPTED:
            message = f"{member.filename!r} is encrypted, or not compressed by deflate"
            raise ValueError(message)
        stored += member.compress_size
        total += member.file_size
        check_memory("arrays", total, size)
        fits = stored <= size and member.file_size <= growth * member.compress_size
        check(fits, f"{member.filename!r} declares more bytes than the file can hold")


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, *, texts: bool) -> np.ndarray:
    try:
        with archive.open(member) as file:
            return _read_array(file, member.file_size, texts=texts)
    except ValueError as error:
        message = f"{member.filename!r}: {error}"
        raise ValueError(message) from error
