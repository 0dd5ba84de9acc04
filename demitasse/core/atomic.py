"""Write files and folders so that a reader sees the old one or the new one, whole, and no third.

What is not complete yet lies beside its place as ``.NAME.1a2b3c4d.part``. A process that is killed
leaves it there; it is never read, and the next one that writes to the folder deletes it.
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

from demitasse.core.paths import regular

__all__ = ["atomic_write", "partial_name", "put_in_place"]

ABANDONED = 600
"""Seconds without a change after which what is not complete is taken for abandoned."""

HERE, EXCHANGE = -100, 2
"""``AT_FDCWD`` and ``RENAME_EXCHANGE`` of Linux."""

_cleared: set[Path] = set()
"""Folders in which this process has looked for leftovers."""


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
        OSError: The folder cannot be written to, the disk is full, or ``path`` is a device, a pipe
            or a socket; names ``path``.
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
        with suppress(OSError):  # the first error says more
            temporary.unlink(missing_ok=True)
        own = (None, os.fspath(temporary))  # a failed write names no file at all
        if isinstance(error, OSError) and error.filename in own:
            error.filename = os.fspath(path)
            if error.filename2 is not None:
                del error.filename2
        raise
    _sync_folder(target.parent)


def partial_name(path: Path) -> Path:
    """Return what a file or folder is called until it is complete: nothing else has that name.

    What killed processes left in its folder is deleted, once in a process.
    """
    if not path.name:  # the root of the file system
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    folder = path.parent.absolute()
    if folder not in _cleared:
        _clear_leftovers(folder)
    return path.with_name(f".{path.name[:200]}.{os.urandom(4).hex()}.part")


def _clear_leftovers(folder: Path) -> None:
    """Delete what processes left in a folder that were killed while they wrote to it."""
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
    """Give a complete folder its name; what had it before is gone then.

    At no time is there nothing of that name, where the system can exchange names (Linux can, on
    its own file systems). Elsewhere there is for a moment: a process that is killed then leaves
    the old folder as ``.NAME.1a2b3c4d.old``.

    Args:
        partial: The folder; its files are on the disk.
        path: The name.

    Raises:
        OSError: It cannot be renamed; what was there is whole.
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
    """Exchange the names of two folders at once; return whether the system can."""
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
    """Return what a path leads to, so that a symbolic link keeps pointing where it does.

    A device or a pipe is refused: nothing can take the place of one but what destroys it.
    """
    try:
        target = Path(path).resolve(strict=True)
        regular(path)
    except FileNotFoundError:
        return Path(path).resolve()
    except RuntimeError:  # what Python before 3.13 says of links that lead in a circle
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path)) from None
    except ValueError as error:  # of a zero byte, or of what the file system has no bytes for
        message = f"no file can be called so: {error}"
        raise OSError(errno.EINVAL, message, os.fspath(path)) from None
    return target


def _sync_folder(folder: Path) -> None:
    """Make the new name last through a power cut, where the system can do that."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
