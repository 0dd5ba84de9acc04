"""What errors quote of a list of files: names, and no line of a file that is no such list.

A prototxt can name any file as its list, such as one with passwords, and others may read the error.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

__all__ = ["quoted"]

ENDINGS = {
    ".bmp", ".dib", ".gif", ".h5", ".hdf", ".hdf5", ".jp2", ".jpe", ".jpeg", ".jpg", ".mat",
    ".npy", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp",
}  # fmt: skip
"""How the names of files end that lists name."""


def quoted(name: str, number: int, path: Path | None = None) -> str:
    """Return what an error calls a file of a list: its name, or its number if that may be none.

    Args:
        name: Its name, as written.
        number: Which one it is, from 1, not counting empty lines.
        path: Where it would be; a file that is there may be named.
    """
    if PurePosixPath(name).suffix.lower() in ENDINGS:
        return name
    try:
        there = path is not None and path.is_file()
    except (OSError, ValueError):  # no name that a file can have
        there = False
    return name if there else f"number {number}"
