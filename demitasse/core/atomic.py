"""Atomic replacement of files and folders: a reader sees the old content or the new one.

Incomplete files are called ``.NAME.1a2b3c4d.part`` and are never read. A killed process leaves its
incomplete files behind; the next process that writes to the folder deletes them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from demitasse.core.paths import regular_file

__all__ = ["atomic_write", "partial_name", "put_in_place"]

ABANDONED = 600
"""Seconds without a change after which an incomplete file counts as abandoned."""

HERE, EXCHANGE = -100, 2
"""``AT_FDCWD`` and ``RENAME_EXCHANGE`` of Linux."""

_cleared: set[Path] = set()
"""Folders whose abandoned files this process has deleted."""


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces ``path`` when the block ends without an exception.

    The bytes are flushed to disk before the rename. If the block raises, ``path`` is unchanged and
    the temporary file is deleted. Permissions of an existing file are kept. Libraries that open
    files by name can use ``file.name``.

    Args:
        path: The file to write; its folder must exist.

    Yields:
        The temporary file, open for writing and reading bytes, in the folder of ``path``.

    Raises:
        OSError: The folder is read-only, the disk is full, or ``path`` is a device, a pipe or a
            socket; the error names ``path``.
    """
    target = _target(path)
    temporary = partial_name(target)
    try:
        with temporary.open("x+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileNotFoundError):
            temporary.chmod(target.stat().st_mode & 0o7777)
        temporary.replace(target)
    except BaseException as error:
        with suppress(OSError):  # report the first error
            temporary.unlink(missing_ok=True)
        own = (None, os.fspath(temporary))  # a failed write names no file
        if isinstance(error, OSError) and error.filename in own:
            error.filename = os.fspath(path)
            if error.filename2 is not None:
                del error.filename2
        raise
    _sync_folder(target.parent)


def partial_name(path: Path) -> Path:
    """Return a unique name for a file or folder until it is complete.

    Abandoned files in its folder are deleted, once per process.
    """
    if not path.name:  # the root of the file system
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    folder = path.parent.absolute()
    if folder not in _cleared:
        _clear_leftovers(folder)
    return path.with_name(f".{path.name[:200]}.{os.urandom(4).hex()}.part")


def _clear_leftovers(folder: Path) -> None:
    """Delete the abandoned files and folders of killed processes."""
    _cleared.add(folder)
    for path in folder.glob(f".*.{'[0-9a-f]' * 8}.part"):
        with suppress(OSError):
            inside = path.iterdir() if path.is_dir() else ()
            if max(file.stat().st_mtime for file in (path, *inside)) > time.time() - ABANDONED:
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def put_in_place(partial: Path, path: Path) -> None:
    """Rename a complete folder to its final name, and delete the folder that had it.

    Linux exchanges the two names atomically, on its native file systems. Elsewhere the name is
    absent for a moment: a process that is killed then leaves the old folder as
    ``.NAME.1a2b3c4d.old``.

    Args:
        partial: The complete folder; its files are flushed to disk.
        path: The final name.

    Raises:
        OSError: The folder cannot be renamed; the old folder is unchanged.
    """
    _sync_folder(partial)
    if not path.exists():
        partial.rename(path)
    elif _exchange(partial, path):
        shutil.rmtree(partial, ignore_errors=True)
    else:
        old = partial_name(path).with_suffix(".old")
        path.rename(old)
        try:
            partial.rename(path)
        except BaseException:
            old.rename(path)
            raise
        shutil.rmtree(old, ignore_errors=True)
    _sync_folder(path.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two folders atomically; return False if the system cannot."""
    try:
        exchange = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):  # not Linux
        return False
    if exchange(HERE, os.fsencode(one), HERE, os.fsencode(other), EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP}:
        return False
    raise OSError(number, os.strerror(number), os.fspath(other))


def _target(path: str | os.PathLike[str]) -> Path:
    """Return the target of a path, so that a symbolic link is kept and its target replaced.

    Devices and pipes are refused: replacing one would destroy it.
    """
    try:
        target = Path(path).resolve(strict=True)
        regular_file(path)
    except FileNotFoundError:
        return Path(path).resolve()
    except RuntimeError:  # circular links, before Python 3.13
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path)) from None
    except ValueError as error:  # a zero byte, or characters that cannot be encoded
        message = f"invalid file name: {error}"
        raise OSError(errno.EINVAL, message, os.fspath(path)) from None
    return target


def _sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, where the system supports it."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
