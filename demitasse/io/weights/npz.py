"""Named arrays in NumPy's ``.npz`` files."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path

import numpy as np

from demitasse.core.atomic import atomic_write
from demitasse.core.paths import code_of, regular_file
from demitasse.errors import ErrorCode, WeightsError
from demitasse.io.weights.npy import read_array

__all__ = ["arrays_in", "read_npz", "write_npz"]

DEFLATES = 1032
"""Largest ratio of DEFLATE compression: bytes per compressed byte."""

ENCRYPTED = 1
"""Flag bit of encrypted members."""


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file of weights by name.

    Raises:
        WeightsError: The file does not exist or cannot be read.
    """
    try:
        return arrays_in(path)
    except (OSError, ValueError) as error:
        message = f"{path} cannot be read as weights: {error}"
        code = code_of(error) if isinstance(error, OSError) else ErrorCode.UNREADABLE
        raise WeightsError(message, code=code, file=str(path)) from error


def arrays_in(
    path: Path, names: Collection[str] | None = None, *, texts: bool = False
) -> dict[str, np.ndarray]:
    """Return the arrays of a file by name.

    Args:
        path: The file.
        names: Names of wanted arrays; None for all.
        texts: Allow arrays of strings.

    Raises:
        OSError: The file cannot be opened.
        ValueError: The file is no archive of arrays of numbers.
    """
    try:
        with regular_file(path).open("rb") as file, zipfile.ZipFile(file) as archive:
            _need_room(archive, path.stat().st_size)
            members = {one.filename.removesuffix(".npy"): one for one in archive.infolist()}
            return {
                name: _array(archive, member, texts=texts)
                for name, member in members.items()
                if names is None or name in names
            }
    except (EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(str(error)) from error


def write_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write arrays, atomically.

    Raises:
        OSError: The file cannot be written; an old file is kept.
    """
    with atomic_write(path) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _need_room(archive: zipfile.ZipFile, size: int) -> None:
    """Refuse members in an unsupported encoding, and members that share bytes."""
    stored = 0
    for member in archive.infolist():
        kinds = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: DEFLATES}
        growth = kinds.get(member.compress_type)
        if growth is None or member.flag_bits & ENCRYPTED:
            message = f"{member.filename!r} is encrypted, or not compressed by deflate"
            raise ValueError(message)
        stored += member.compress_size
        if stored > size or member.file_size > growth * member.compress_size:
            message = f"{member.filename!r} declares more bytes than the file can hold"
            raise ValueError(message)


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, *, texts: bool) -> np.ndarray:
    try:
        with archive.open(member) as file:
            return read_array(file, member.file_size, texts=texts)
    except ValueError as error:
        message = f"{member.filename!r}: {error}"
        raise ValueError(message) from error
