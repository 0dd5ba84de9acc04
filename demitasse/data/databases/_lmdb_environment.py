"""Opening LMDB files: one environment per file and process, whoever asks for it.

The LMDB library refuses to open a file twice in one process, but two nets, or the training and the
test net of a solver, may well read the same one.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from demitasse.data.databases.database import Mode, what_is_there
from demitasse.errors import DataError

if TYPE_CHECKING:
    import lmdb

__all__ = ["Environment", "acquire", "let_go"]


class Environment:
    """An open LMDB file and how many use it."""

    def __init__(self, env: lmdb.Environment, key: tuple[int, Path]) -> None:
        self.env, self.key, self.users = env, key, 1


_lock = threading.RLock()  # a garbage collection may let go of one while another is acquired
_open: dict[tuple[int, Path], Environment] = {}


def acquire(path: Path, mode: Mode, map_size: int) -> Environment:
    """Return the environment of the LMDB at ``path``, opening it if nobody has yet.

    Raises:
        DataError: It cannot be opened; says what was found there.
    """
    key = (os.getpid(), path.resolve())  # a forked child must not use its parent's
    with _lock:
        shared = _open.get(key)
        if shared is not None:
            if mode != "read":
                message = "is open in this process already; close it before writing to it"
                raise DataError(message, str(path))
            shared.users += 1
            if shared.users > 1:  # else a garbage collection right here has closed it
                return shared
        _refuse_parents(key)
        env = _open_for_reading(path) if mode == "read" else _open_for_writing(path, mode, map_size)
        shared = _open[key] = Environment(env, key)
        return shared


def let_go(shared: Environment) -> None:
    """Undo one ``acquire``; the last one closes the file."""
    with _lock:
        shared.users -= 1
        if not shared.users and shared.key[0] == os.getpid():
            del _open[shared.key]
            shared.env.close()


def _refuse_parents(key: tuple[int, Path]) -> None:
    """Refuse what a forked child cannot do: the library takes the file for open here.

    It can neither be used in the child nor closed.

    Raises:
        DataError: Says what to do.
    """
    process, path = key
    if any(other[0] != process and other[1] == path for other in _open):
        message = (
            "is open in the process that this one was forked from; close the parent's nets before "
            "the fork, or start processes with multiprocessing's 'spawn' or 'forkserver'"
        )
        raise DataError(message, str(path))


def _open_for_reading(path: Path) -> lmdb.Environment:
    import lmdb

    file = path / "data.mdb" if path.is_dir() else path
    if not file.exists():
        raise DataError(what_is_there(path, "LMDB"), str(path))
    try:
        env = lmdb.open(str(path), subdir=path.is_dir(), readonly=True, lock=False, create=False)
    except (lmdb.Error, OSError) as error:
        message = f"cannot be opened as an LMDB: {error}"
        raise DataError(message, str(path)) from error
    # Reading beyond the end of a mapped file would kill the process.
    needed = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    found = file.stat().st_size
    if found < needed:
        env.close()
        message = f"the LMDB is cut short: it says it has {needed} bytes, the file has {found}"
        raise DataError(message, str(path))
    return env


def _open_for_writing(path: Path, mode: Mode, map_size: int) -> lmdb.Environment:
    import lmdb

    if mode == "new" and path.exists():
        message = "exists already; remove it first or write somewhere else"
        raise DataError(message, str(path))
    if mode == "write" and not path.exists():
        raise DataError(what_is_there(path, "LMDB"), str(path))
    try:
        path.mkdir(parents=True, exist_ok=True)
        return lmdb.open(str(path), map_size=max(map_size, _size_of(path)))
    except (lmdb.Error, OSError) as error:
        message = f"cannot be opened for writing: {error}"
        raise DataError(message, str(path)) from error


def _size_of(folder: Path) -> int:
    file = folder / "data.mdb"
    return file.stat().st_size if file.exists() else 0
