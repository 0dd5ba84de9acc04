"""Image and video files of a folder, by file name extension."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

__all__ = ["IMAGES", "VIDEOS", "files_in"]

IMAGES = {
    *(".bmp", ".dib", ".gif", ".jpe", ".jpeg", ".jpg", ".jp2", ".pbm", ".pgm", ".png", ".pnm"),
    *(".ppm", ".ras", ".sr", ".tif", ".tiff", ".webp"),
}
VIDEOS = {
    *(".avi", ".flv", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".ogv", ".webm", ".wmv"),
}
"""File name extensions, in lower case."""


def files_in(folder: Path, endings: Collection[str]) -> Iterator[Path]:
    """Yield the files of a folder and its subfolders in order, without hidden files and links.

    Args:
        folder: The folder.
        endings: Wanted file name extensions, in lower case.

    Raises:
        OSError: A folder cannot be read.
    """
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            if not path.is_symlink():
                yield from files_in(path, endings)
        elif path.suffix.lower() in endings:
            yield path
