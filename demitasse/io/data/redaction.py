"""Lists of files: reading, and redaction of file names in errors.

A prototxt can name any file as its list, e.g. a file of passwords, and errors may be public. So
errors quote only entries that look like, or are, names of data files.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from demitasse.core.paths import code_of, read_failure, read_text
from demitasse.errors import DataError

ENDINGS = {
    ".bmp", ".dib", ".gif", ".h5", ".hdf", ".hdf5", ".jp2", ".jpe", ".jpeg", ".jpg", ".mat",
    ".npy", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp",
}  # fmt: skip
"""File name extensions of data files."""


def quoted(name: str, number: int, path: Path | None = None) -> str:
    """Return the name of a list entry for an error, or its number if the name may be a secret.

    Args:
        name: The entry as written.
        number: Number of the entry, from 1, without empty lines.
        path: Path of the entry; an existing file may be named.
    """
    if PurePosixPath(name).suffix.lower() in ENDINGS:
        return name
    try:
        there = path is not None and path.is_file()
    except (OSError, ValueError):  # an impossible file name
        there = False
    return name if there else f"number {number}"


def read_list_file(source: Path, what: str) -> str:
    """Return the text of a list file.

    Args:
        source: The file.
        what: Description of the file, for errors.

    Raises:
        DataError: The file cannot be read.
    """
    try:
        return read_text(source)
    except OSError as error:
        message = f"the {what} cannot be read: {read_failure(error, source)}"
        raise DataError(message, str(source), code=code_of(error)) from error
