"""Write files so that a reader sees the old one or the new one, whole, and nothing between."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

__all__ = ["atomic_write"]


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a temporary file that takes the place of ``path`` when the block ends well.

    The bytes are on the disk before the name changes hands. When the block raises, ``path`` stays
    as it was and the temporary file is gone. The permissions of an existing file are kept. For a
    library that opens files by name, the name of the temporary one is ``file.name``.

    Args:
        path: The file to write; its folder must exist.

    Yields:
        The temporary file, open for writing and reading bytes, in the folder of ``path``.

    Raises:
        OSError: The folder cannot be written to, or the disk is full; names ``path``.
    """
    target = _target(path)
    temporary = target.with_name(f".{target.name[:200]}.{os.urandom(4).hex()}.part")
    try:
        with temporary.open("x+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileNotFoundError):
            temporary.chmod(target.stat().st_mode & 0o7777)
        temporary.replace(target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        own = (None, os.fspath(temporary))  # a failed write names no file at all
        if isinstance(error, OSError) and error.filename in own and not error.filename2:
            error.filename = os.fspath(path)
        raise
    _sync_folder(target.parent)


def _target(path: str | os.PathLike[str]) -> Path:
    """Return what a path leads to, so that a symbolic link keeps pointing where it does."""
    try:
        return Path(path).resolve(strict=True)
    except FileNotFoundError:
        return Path(path).resolve()
    except RuntimeError:  # what Python before 3.13 says of links that lead in a circle
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path)) from None


def _sync_folder(folder: Path) -> None:
    """Make the new name last through a power cut, where the system can do that."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
