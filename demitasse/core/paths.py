"""Find the files that prototxts name."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from demitasse.core.suggest import suggestion
from demitasse.errors import ConfigError

__all__ = [
    "bytes_in",
    "is_file",
    "is_folder",
    "near_name",
    "real",
    "regular",
    "resolve",
    "text_in",
    "why_not",
]

ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""What is said of a file that is not there."""

MOST_NEIGHBOURS = 2000
"""Files of a folder among which one of a near name is looked for."""


def resolve(name: str, base: Path | None = None) -> Path:
    """Return where the file or folder ``name`` is.

    Caffe looks in the working directory only. We look there first, so that its command lines
    keep working, and then beside the prototxt that names the file, so that a folder can be
    used from anywhere.

    Args:
        name: The path as written.
        base: Folder of the file that names it, or None.

    Returns:
        The first of the two that exists; the one in the working directory when neither does, so
        that the error of whoever opens it shows the path as written.

    Raises:
        ConfigError: No file can have that name: it is too long, or holds a zero byte.
    """
    path, place = Path(name), f"file name {name!r}"
    if "\0" in name:
        message = "there is a zero byte in it"
        raise ConfigError(message).at(place)
    try:
        if not _there(path) and not path.is_absolute() and base is not None:
            beside = base / path
            return beside if _there(beside) else path
    except (OSError, ValueError) as error:
        raise ConfigError(getattr(error, "strerror", None) or str(error)).at(place) from None
    return path


def _there(path: Path) -> bool:
    """Whether there is such a file; ``Path.exists`` says no, from 3.14 on, to what cannot be.

    Raises:
        OSError: No file can be called so, or it cannot be found out.
    """
    try:
        path.stat()
    except OSError as error:
        if error.errno not in ABSENT:
            raise
        return False
    return True


def real(path: str | os.PathLike[str]) -> Path:
    """Return what a path leads to; links that lead in a circle stay as they are.

    ``Path.resolve`` raises a RuntimeError for those before Python 3.13.
    """
    return Path(os.path.realpath(path))


def regular(path: str | os.PathLike[str]) -> Path:
    """Return a path if it is not that of a pipe, a device or a socket, which may never end.

    Raises:
        OSError: It is, or there is nothing of that name, or nothing can have it.
    """
    try:
        mode = Path(path).stat().st_mode
    except ValueError as error:  # of a zero byte, or of what the file system has no bytes for
        message = f"no file can be called so: {error}"
        raise OSError(errno.EINVAL, message, os.fspath(path)) from None
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # opening a folder says that it is one
        message = "this is a pipe, a device or a socket; a regular file is needed"
        raise OSError(errno.EINVAL, message, os.fspath(path))
    return Path(path)


def bytes_in(path: str | os.PathLike[str]) -> bytes:
    """Return all bytes of a regular file.

    Raises:
        OSError: It is none (see ``regular``), cannot be read, or has no room in memory.
    """
    with _room_for(path):
        return regular(path).read_bytes()


def text_in(path: str | os.PathLike[str], errors: str = "surrogateescape") -> str:
    """Return a text file, its lines ended by newlines.

    Args:
        path: The file.
        errors: What is done with bytes that are no UTF-8, as for ``bytes.decode``.

    Raises:
        OSError: It is no regular file (see ``regular``), cannot be read, or has no room in memory.
    """
    with _room_for(path):
        return regular(path).read_text(encoding="utf-8", errors=errors)


@contextmanager
def _room_for(path: str | os.PathLike[str]) -> Iterator[None]:
    """Say which file has no room in memory: a small one can claim to be of any size."""
    try:
        yield
    except MemoryError:
        message = "the file is too large for the memory there is"
        raise OSError(errno.ENOMEM, message, os.fspath(path)) from None


def is_file(name: str | Path) -> bool:
    """Whether there is a file of that name; False for what cannot be a name."""
    try:
        return Path(name).is_file()
    except OSError:
        return False


def is_folder(name: str | Path) -> bool:
    """Whether there is a folder of that name; False for what cannot be a name."""
    try:
        return Path(name).is_dir()
    except OSError:
        return False


def why_not(error: OSError, path: str | os.PathLike[str]) -> str:
    """Return why a file cannot be read; of one that is not there, what is called nearly so."""
    reason = error.strerror or str(error)
    return reason + near_name(path) if error.errno == errno.ENOENT else reason


def near_name(path: str | os.PathLike[str]) -> str:
    """Return "; did you mean ...?" with what a folder has of nearly this name, or nothing."""
    try:
        beside = [entry.name for entry in islice(os.scandir(Path(path).parent), MOST_NEIGHBOURS)]
    except (OSError, ValueError):
        return ""
    return suggestion(Path(path).name, beside)
