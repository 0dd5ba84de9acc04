"""Caches: compiled kernels on disk, and the most recently used values in memory.

Folders and files that others own or can write are left alone. Each file begins with a seal of its
name and contents under a key that only the user can read: so a damaged file is not run, nor one
that was written while the folder was open to others.
"""

import os
import stat
from collections import OrderedDict
from collections.abc import Hashable
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

from demitasse.core.atomic import atomic_write
from demitasse.core.config.files import untrusted_reason, warn_once
from demitasse.core.hashing import BYTES, keyed_hash, same_keyed_hash
from demitasse.core.paths import real_path


def folder() -> Path | None:
    """Return where compiled kernels are kept, or None where the user has no folder of their own.

    That is ``$XDG_CACHE_HOME/demitasse/kernels``, or the same in ``~/.cache`` where the variable
    is unset or, as its specification says, no absolute path.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or "")
    try:
        return (base if base.is_absolute() else Path.home() / ".cache") / "demitasse" / "kernels"
    except RuntimeError:  # no home
        return None


def read_code(name: str) -> bytes | None:
    """Return the machine code that is kept under a name, or None."""
    with suppress(OSError):
        place, key, _ = _own_folder()
        content = _read(place / name) if place is not None else None
        if content is not None:
            seal, code = content[:BYTES], content[BYTES:]
            if same_keyed_hash(key, seal, _seal(key, name, code)):
                return code
    return None


def write_code(name: str, code: bytes) -> None:
    """Store machine code under a name, if the cache folder is usable."""
    if reason := _store(name, code):
        warn_once(reason)


def unusable_reason() -> str:
    """Return why no compiled kernels are kept, with the remedy; an empty string if they are."""
    return _store("probe", b"")


def _store(name: str, code: bytes) -> str:
    """Store machine code under a name; return the reason if that is impossible."""
    try:
        place, key, reason = _own_folder()
        if place is not None:
            # not flushed to the disk: the seal shows damage
            _write(place / name, _seal(key, name, code) + code, durable=False)
        return reason
    except OSError as error:
        return (
            f"compiled kernels are not kept in {folder()} ({error.strerror or error}), so that "
            "every process compiles them again; XDG_CACHE_HOME can name another folder"
        )


def _seal(key: bytes, name: str, code: bytes) -> bytes:
    return keyed_hash(key, name.encode() + b"\0" + code)


def _own_folder() -> tuple[Path | None, bytes, str]:
    """Return the folder and the key of its seals, made where they are not there.

    The folder is None where others could write in it; the text is the reason.
    """
    place = folder()
    if place is None:
        return None, b"", ""
    place = real_path(place)
    place.parent.parent.mkdir(parents=True, exist_ok=True)
    for own in (place.parent, place):
        own.mkdir(0o700, exist_ok=True)
    for one in (place, *place.parents):
        private = one in (place, place.parent)
        if reason := untrusted_reason(one.stat(), strict=private, sticky=not private):
            return None, b"", f"compiled kernels are not kept in {place}: {one}: {reason}"
    key = _key(place)
    return (None, b"", "") if key is None else (place, key, "")


def _key(place: Path) -> bytes | None:
    """Return the user's key, made where it is not there; it lies beside the folder."""
    path = place.with_name("kernels.key")
    key = _read(path, secret=True)
    if key is None or len(key) != BYTES:
        key = os.urandom(BYTES)
        _write(path, key, durable=True)
        key = _read(path, secret=True)  # another process may have been later
    return key if key is not None and len(key) == BYTES else None


def _read(path: Path, *, secret: bool = False) -> bytes | None:
    """Return the contents of a regular file of the user or of root; None for all else.

    Links are not followed, and a pipe is not waited for. A ``secret`` file must be unreadable for
    other users.
    """
    flags = os.O_RDONLY
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
        flags |= getattr(os, name, 0)
    try:
        handle = os.open(path, flags)
    except OSError:
        return None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            return None
        readable = secret and os.name == "posix" and status.st_mode & 0o077
        if readable or untrusted_reason(status, strict=True):
            return None
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(handle)


def _write(path: Path, content: bytes, *, durable: bool) -> None:
    """Write a file that is the user's alone, in place of whatever was there."""
    with suppress(FileNotFoundError):
        path.unlink()  # else its mode is kept, and a link followed
    with atomic_write(path, durable=durable) as file:
        if hasattr(os, "fchmod"):
            os.fchmod(file.fileno(), 0o600)
        file.write(content)


V = TypeVar("V")


class LRUCache(OrderedDict[Hashable, V], Generic[V]):
    """At most ``most`` values by key; a new one replaces the value that is unused for longest."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def find(self, key: Hashable) -> V | None:
        """Return the value of ``key``, or None."""
        if key not in self:
            return None
        self.move_to_end(key)
        return self[key]

    def keep(self, key: Hashable, value: V) -> V:
        """Keep a value, and return it."""
        self[key] = value
        self.move_to_end(key)
        while len(self) > self._most:
            self.popitem(last=False)
        return value
