"""Atomic replacement of files and folders: a reader sees the old content or the new one.

Incomplete files are called ``.NAME.CHECK.1a2b3c4d.part`` and are never read. ``CHECK`` is a hash of
the other parts, so no other program makes such a name by accident. A process locks its incomplete
files. A killed process leaves its files behind, without a lock; the next process that writes to the
folder deletes them once they are ten minutes old. Where files cannot be locked nothing is deleted.

The new file has mode, owner, group, ACL and extended attributes of the file that it replaces, as
far as the system permits, and is never more accessible before. Other hard links of the old file
keep the old content.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from demitasse.core.hashing import digest
from demitasse.core.paths import real_path, regular_file

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from hashlib import _Hash

ABANDONED = 600  # seconds without a change after which an incomplete file counts as abandoned
PART = 1 << 20  # bytes of a file that are read at a time
HERE, EXCHANGE = -100, 2  # ``AT_FDCWD`` and ``RENAME_EXCHANGE`` of Linux

PRIVATE_FILE, PRIVATE_FOLDER, PUBLIC = 0o600, 0o700, 0o666
"""Modes of new files and folders; the last is restricted by the process's umask."""

PARTIAL = re.compile(
    r"\.(?P<name>.+)\.(?P<check>[0-9a-f]{16})\.(?P<key>[0-9a-f]{8})\.part", re.DOTALL
)

_cleared: set[Path] = set()  # folders whose abandoned files this process has deleted


@contextmanager
def atomic_write(
    path: str | os.PathLike[str], hashed: _Hash | None = None, *, durable: bool = True
) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces ``path`` when the block ends without an exception.

    The file is open for writing and reading bytes, in the folder of ``path``, which must exist.
    The bytes are flushed to disk before the rename if ``durable``, and update the hash, unless
    None. If the block raises, ``path`` is unchanged and the temporary file is deleted. Libraries
    that open files by name can use ``file.name``.

    Raises:
        OSError: The folder is read-only, the disk is full, or ``path`` is a device, a pipe or a
            socket; the error names ``path``.
    """
    target = _target(path)
    temporary = partial_name(target)
    mode = PRIVATE_FILE if target.exists() else PUBLIC
    try:
        with open(temporary, "x+b", opener=partial(os.open, mode=mode)) as file:
            _lock(file.fileno())
            yield file
            file.flush()
            if hashed is not None:
                file.seek(0)
                while part := file.read(PART):
                    hashed.update(part)
            copy_attributes(target, temporary)
            if durable:
                os.fsync(file.fileno())
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
    if durable:
        _sync_folder(target.parent)


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Replace a file by a new one with this content; errors are those of ``atomic_write``."""
    with atomic_write(path) as file:
        file.write(content)


@contextmanager
def partial_folder(path: Path) -> Iterator[Path]:
    """Make a private folder beside ``path``, locked during the block and deleted afterwards."""
    folder = partial_name(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(PRIVATE_FOLDER)
    except OSError as error:
        error.filename = os.fspath(path)
        raise
    try:
        with locked_folder(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Lock a folder during the block, where the system can; refuse a locked one."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            _lock(handle)
        except BlockingIOError as error:
            error.filename = os.fspath(folder)
            raise
        yield
    finally:
        os.close(handle)


def _lock(handle: int) -> bool:
    """Lock an open file until it is closed; return False if the system has no locks."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def partial_name(path: Path) -> Path:
    """Return a unique name for a file or folder until it is complete.

    Abandoned files in its folder are deleted, once per process.
    """
    if not path.name:  # the root of the file system
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    folder = path.parent.absolute()
    if folder not in _cleared:
        _clear_leftovers(folder)
    name = os.fsencode(path.name)[:200].decode("utf-8", "ignore")
    key = os.urandom(4).hex()
    return path.with_name(f".{name}.{_check(name, key)}.{key}.part")


def _check(name: str, key: str) -> str:
    return digest(f"demitasse {name} {key}".encode("utf-8", "surrogatepass"))[:16]


def is_partial_name(name: str) -> bool:
    """Return True for a name that ``partial_name`` has made."""
    parts = PARTIAL.fullmatch(name)
    return parts is not None and parts["check"] == _check(parts["name"], parts["key"])


def _clear_leftovers(folder: Path) -> None:
    """Delete the abandoned files and folders of killed processes."""
    _cleared.add(folder)
    for path in folder.glob(".*.part"):
        if not is_partial_name(path.name):
            continue
        with suppress(OSError):
            inside = path.rglob("*") if path.is_dir() else ()
            if max(file.lstat().st_mtime for file in (path, *inside)) <= time.time() - ABANDONED:
                _delete_unlocked(path)


def _delete_unlocked(path: Path) -> None:
    """Delete an abandoned file or folder, unless a process has locked it or locks do not work."""
    is_folder = stat.S_ISDIR(path.lstat().st_mode)
    handle = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
    try:
        if not _lock(handle):
            return
        if is_folder:
            shutil.rmtree(path)
        else:
            path.unlink()
    finally:
        os.close(handle)


def copy_attributes(source: Path, target: Path) -> None:
    """Copy mode, owner, group, ACL and extended attributes, as far as the system permits.

    Without the right to keep the group, its members get the rights of all others. If the source
    does not exist, nothing is copied.
    """
    try:
        wanted = source.stat()
    except FileNotFoundError:
        return
    mode, own = stat.S_IMODE(wanted.st_mode), target.stat()
    if sys.platform != "win32" and (own.st_uid, own.st_gid) != (wanted.st_uid, wanted.st_gid):
        with suppress(OSError):
            os.chown(target, -1, wanted.st_gid)
        with suppress(OSError):
            os.chown(target, wanted.st_uid, -1)
        own = target.stat()
        if (own.st_uid, own.st_gid) != (wanted.st_uid, wanted.st_gid):
            mode &= ~(stat.S_ISUID | stat.S_ISGID)
        if own.st_gid != wanted.st_gid:
            mode &= ~stat.S_IRWXG | (mode & stat.S_IRWXO) << 3
    _copy_extended_attributes(source, target)
    with suppress(PermissionError):  # some file systems have no modes
        target.chmod(mode)


def _copy_extended_attributes(source: Path, target: Path) -> None:
    """Copy extended attributes, among them ACLs; Linux only."""
    if sys.platform != "linux":
        return
    with suppress(OSError):
        wanted = os.listxattr(source)
        for name in set(os.listxattr(target)) - set(wanted):  # inherited from the folder
            with suppress(OSError):
                os.removexattr(target, name)
        for name in wanted:
            with suppress(OSError):
                os.setxattr(target, name, os.getxattr(source, name))


def put_in_place(complete: Path, path: Path) -> None:
    """Rename a complete folder to its final name, and delete the folder that had it.

    Linux exchanges the two names atomically, on its native file systems. Elsewhere the name is
    absent for a moment: a process that is killed then leaves the old folder as
    ``.NAME.CHECK.1a2b3c4d.old``. The new folder has the attributes of the old folder, and its files
    those of the old files of their names; other files get the rights that all old files give. On an
    error the old folder is unchanged.
    """
    if path.is_dir():
        _copy_folder_attributes(path, complete)
    _sync_folder(complete)
    if not path.exists():
        complete.rename(path)
    elif _exchange(complete, path):
        shutil.rmtree(complete, ignore_errors=True)
    else:
        old = partial_name(path).with_suffix(".old")
        path.rename(old)
        try:
            complete.rename(path)
        except BaseException:
            old.rename(path)
            raise
        shutil.rmtree(old, ignore_errors=True)
    _sync_folder(path.parent)


def _copy_folder_attributes(source: Path, target: Path) -> None:
    """Copy the attributes of a folder and of its files."""
    files = {file.name: file for file in source.iterdir() if file.is_file()}
    common = PUBLIC
    for file in files.values():
        common &= file.stat().st_mode
    for file in target.iterdir():
        if file.name in files:
            copy_attributes(files[file.name], file)
        elif files:
            file.chmod(file.stat().st_mode & common)
    copy_attributes(source, target)


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

    Folders, devices and pipes are refused: replacing one would destroy it.
    """
    with suppress(FileNotFoundError):
        if regular_file(path).is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    return real_path(path)


def _sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, where the system supports it."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
