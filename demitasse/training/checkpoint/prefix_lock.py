"""Locks of snapshot prefixes: one process at a time writes the snapshots of a prefix.

The lock file ``.NAME.lock`` beside the snapshots is locked by the system, which frees the lock when
the process dies. The file is deleted at the end of the run; a file that a killed process left is
locked again by the next run.
"""

import errno
import gc
import os
import socket
import sys
import threading
import weakref
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from demitasse.core.log import get_logger
from demitasse.errors import ErrorCode, SnapshotError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

log = get_logger(__name__)

HEAD = "demitasse: "  # beginning of a lock file, before the name of the process
BYTE = 1 << 20  # place of the locked byte on Windows, where a locked byte cannot be read


class PrefixLock:
    """The locks of the snapshots of one solver.

    The solvers of one process share locks; a warning reports two live solvers with one prefix.
    Without locks, as on some network file systems, a warning says that other runs are not noticed.
    """

    def __init__(self) -> None:
        self._files: dict[Path, _LockFile | None] = {}

    def take(self, prefix: str) -> None:
        """Lock a prefix, unless locked already; raise a SnapshotError if another process has it."""
        path = lock_path(prefix)
        if path in self._files:
            return
        try:
            file = _locked_file(path)
        except BlockingIOError as error:
            message = (
                f"snapshot_prefix {prefix!r} is in use: {error.strerror} writes snapshots there, "
                f"and has locked {os.fspath(path)!r}; wait for its end, or give another prefix"
            )
            details = {"field": "snapshot_prefix", "got": prefix}
            raise SnapshotError(message, code=ErrorCode.IN_USE, **details) from None
        except OSError as error:
            log.warning(
                "%s cannot be locked (%s): another run with this snapshot_prefix would not be "
                "noticed.",
                path, error.strerror or error,
            )  # fmt: skip
            self._files[path] = None
            return
        if file.users:
            gc.collect()  # deletes unreachable solvers, which are in reference cycles
        if file.users:
            log.warning(
                "Another solver of this process writes snapshots with snapshot_prefix %r, too; "
                "each overwrites files of the other.",
                prefix,
            )
        file.users.add(self)
        self._files[path] = file

    @contextmanager
    def held(self, prefix: str) -> Iterator[None]:
        """Lock a prefix during the block, unless this solver has locked the prefix already."""
        known = set(self._files)
        self.take(prefix)
        try:
            yield
        finally:
            self.free(keep=known)

    def free(self, keep: Collection[Path] = ()) -> None:
        """Free all locks but ``keep`` that no other solver of this process uses."""
        for path in self._files.keys() - keep:
            if (file := self._files.pop(path)) is not None:
                file.users.discard(self)


def lock_path(prefix: str) -> Path:
    """Return the path of the lock file of a prefix."""
    first = Path(f"{prefix}_iter")
    name = os.fsencode(first.name.removesuffix("_iter"))[:200].decode("utf-8", "ignore")
    return first.absolute().parent / f".{name}.lock"


class _LockFile:
    """An open and locked file with the locks that use it; its deletion frees the lock."""

    def __init__(self, path: Path, handle: int) -> None:
        self.users: weakref.WeakSet[PrefixLock] = weakref.WeakSet()
        weakref.finalize(self, _free_file, path, handle, os.getpid())


_files: weakref.WeakValueDictionary[tuple[int, int, int], _LockFile] = weakref.WeakValueDictionary()
"""Locked files by process, device and inode; a forked child has copies of its parent's."""

_taking = threading.Lock()


def _locked_file(path: Path) -> _LockFile:
    """Return the file that this process has locked, or lock it; name another owner in the error."""
    with _taking:
        while True:
            with suppress(FileNotFoundError):
                # to open and to close the file once more would free the lock of this process
                known = _files.get(_key(path.lstat()))
                if known is not None:
                    return known
            handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
            try:
                owner = os.read(handle, 200).decode("utf-8", "replace")
                if owner and not owner.startswith(HEAD):
                    message = "the file is no lock; move it away"
                    raise OSError(errno.EEXIST, message, os.fspath(path))
                try:
                    _lock(handle)
                except BlockingIOError as error:
                    name = owner.removeprefix(HEAD).strip() or "another process"
                    raise BlockingIOError(error.errno, name) from None
                status = os.fstat(handle)
                if _key(status) == _key_of(path):
                    with suppress(OSError):  # without the name the file is a lock all the same
                        os.ftruncate(handle, 0)
                        os.lseek(handle, 0, os.SEEK_SET)
                        name = f"process {os.getpid()} on {socket.gethostname()}"
                        os.write(handle, f"{HEAD}{name}\n".encode())
                    file = _files[_key(status)] = _LockFile(path, handle)
                    return file
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)  # its last owner has deleted the file


def _key(status: os.stat_result) -> tuple[int, int, int]:
    return os.getpid(), status.st_dev, status.st_ino


def _key_of(path: Path) -> tuple[int, int, int] | None:
    try:
        return _key(path.lstat())
    except FileNotFoundError:
        return None


def _lock(handle: int) -> None:
    """Lock an open file for this process; raise a BlockingIOError if another has locked it."""
    try:
        if fcntl is not None:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        elif sys.platform == "win32":
            import msvcrt

            os.lseek(handle, BYTE, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    except PermissionError as error:  # some systems say so of a lock of another process
        raise BlockingIOError(error.errno, error.strerror) from None


def _free_file(path: Path, handle: int, process: int) -> None:
    """Delete a lock file and free the lock; a forked child closes its copy alone."""
    own = process == os.getpid() and _key(os.fstat(handle)) == _key_of(path)
    if own and sys.platform != "win32":
        with suppress(OSError):
            path.unlink()
    with suppress(OSError):
        os.close(handle)
    if own and sys.platform == "win32":  # which deletes no open files
        with suppress(OSError):
            path.unlink()
