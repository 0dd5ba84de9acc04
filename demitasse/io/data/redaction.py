"""Lists of files: reading, and redaction of file names in errors.

A prototxt can name any file as its list, e.g. a file of passwords, and errors may be public. So
errors quote only entries that look like, or are, names of data files.
"""

from pathlib import Path, PurePosixPath

from demitasse.core.paths import code_of, read_failure, read_text, regular_file
from demitasse.errors import DataError, ErrorCode

ENDINGS = {
    ".bmp", ".dib", ".gif", ".h5", ".hdf", ".hdf5", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg",
    ".mat", ".npy", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp",
}  # fmt: skip
"""File name extensions of data files."""

BINARY = {
    b"\x89HDF": "an HDF5 file", b"\x89PNG": "an image", b"\xff\xd8\xff": "an image",
    b"GIF8": "an image", b"BM": "an image", b"II*\0": "an image", b"MM\0*": "an image",
    b"RIFF": "an image", b"PK\x03\x04": "a ZIP archive", b"\x1f\x8b": "a gzip archive",
    b"\xff\xfe": "text in UTF-16, to be saved as UTF-8",
}  # fmt: skip
"""First bytes of a binary file -> its kind."""

START = 1 << 16  # bytes of a file that are searched for zeros, before gigabytes are read


def quoted(name: str, number: int, path: Path | None = None) -> str:
    """Return the name of an entry for an error, or its number if the name may be a secret."""
    if PurePosixPath(name).suffix.lower() in ENDINGS:
        return name
    try:
        there = path is not None and path.is_file()
    except (OSError, ValueError):  # an impossible file name
        there = False
    return name if there else f"number {number}"


def read_list_file(source: Path, what: str) -> str:
    """Return the text of a list file, without a byte order mark; ``what`` names it in errors."""
    try:
        with regular_file(source).open("rb") as file:
            start = file.read(START)
        text = "" if b"\0" in start else read_text(source)
    except OSError as error:
        message = f"the {what} cannot be read: {read_failure(error, source)}"
        raise DataError(message, str(source), code=code_of(error)) from error
    if b"\0" in start or "\0" in text:
        known = (kind for begin, kind in BINARY.items() if start.startswith(begin))
        message = (
            f"got {next(known, 'a binary file')}, expected a {what}, which is a text file; "
            "write the names of the files into a text file, and name the text file"
        )
        raise DataError(message, str(source), code=ErrorCode.INVALID)
    return text
