"""The settings files that the user trusts, as they were when he said so.

The list is ``demitasse/trusted.json`` in ``$XDG_CONFIG_HOME``, or in ``~/.config``: the path of
each file, and the digest of its bytes. A file that was changed since is trusted no longer. Source:
the way direnv and git keep what a user has allowed.
"""

from __future__ import annotations

import json
import logging
import os
from functools import cache
from pathlib import Path

from demitasse.core.atomic import atomic_write
from demitasse.core.config.owners import doubt
from demitasse.core.digests import sha256
from demitasse.core.paths import bytes_in, regular
from demitasse.errors import ConfigError

__all__ = ["digest", "distrust", "list_path", "trust", "trusted", "trusted_files"]

log = logging.getLogger(__name__)


def digest(content: bytes) -> str:
    """Return what a file's bytes are known by."""
    return sha256(content).hexdigest()


def list_path() -> Path:
    """Return where the list is, be it there or not."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    folder = Path(base) if Path(base).is_absolute() else Path.home() / ".config"
    return folder / "demitasse" / "trusted.json"


def trusted_files() -> dict[str, str]:
    """Return path and digest of each file on the list; a list that others can write is empty."""
    try:
        path = list_path()
        status = path.stat()
    except (OSError, RuntimeError):  # no list; no home
        return {}
    return _read(path, status.st_mtime_ns, doubt(status) or doubt(path.parent.stat()))


def trusted(path: Path, content: str) -> bool:
    """Whether the user trusts a file with this digest."""
    return trusted_files().get(str(path.resolve())) == content


def trust(path: Path) -> None:
    """Put a file on the list, as it is now.

    Raises:
        ConfigError: It is not the user's own, or others can write it.
        OSError: It cannot be read, or the list not written.
    """
    path = regular(path).resolve()
    for place in (path, path.parent):
        if reason := doubt(place.stat()):
            message = f"{place} cannot be trusted: {reason}"
            raise ConfigError(message)
    _write(trusted_files() | {str(path): digest(path.read_bytes())})


def distrust(path: Path) -> bool:
    """Take a file off the list; False if it was not on it.

    Raises:
        OSError: The list cannot be written.
    """
    files = dict(trusted_files())
    found = files.pop(str(path.resolve()), None) is not None
    if found:
        _write(files)
    return found


def _write(files: dict[str, str]) -> None:
    path = list_path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with atomic_write(path) as file:
        file.write(json.dumps(files, indent=1).encode())


@cache
def _read(path: Path, changed: int, reason: str) -> dict[str, str]:
    """Read the list once for each time it changed."""
    del changed
    if reason:
        log.warning("the list of trusted files %s is ignored: %s", path, reason)
        return {}
    try:
        files = json.loads(bytes_in(path))
        return {str(name): str(value) for name, value in files.items()}
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        log.warning("the list of trusted files %s cannot be read: %s", path, error)
        return {}
