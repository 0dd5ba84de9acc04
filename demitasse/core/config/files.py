"""Settings files: ``demitasse.toml``, and ``[tool.demitasse]`` in ``pyproject.toml``.

Another person may have put a file into a folder. A file that another user owns or can write is
therefore ignored. An untrusted file may forbid loading and running code, but may neither cause it
nor name files to write; ``demitasse trust FILE`` allows both, until the file changes.

Trusted files are listed in ``demitasse/trusted.json`` in ``$XDG_CONFIG_HOME`` or ``~/.config``:
path and SHA-256 of each. Source: direnv and git keep such lists.
"""

import json
import logging
import os
import stat
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from demitasse.core.atomic import write_bytes
from demitasse.core.config.table import CURRENT_NAMES, TABLE, Setting
from demitasse.core.deprecated import log_once
from demitasse.core.hashing import sha256
from demitasse.core.paths import read_bytes, regular_file
from demitasse.core.text import suggestion
from demitasse.errors import ConfigError, ErrorCode

log = logging.getLogger(__name__)

NAMES = {"demitasse.toml": (), "pyproject.toml": ("tool", "demitasse")}
"""Names of settings files, and the table in each that contains the settings."""


@dataclass(frozen=True)
class SettingsFile:
    """A parsed settings file: raw values by setting, and the SHA-256 in hexadecimal digits."""

    path: Path
    table: Mapping[str, object]
    digest: str

    def may_set(self, setting: Setting, value: object) -> bool:
        """Return True if the file may give a setting this value; log a warning if not."""
        if setting.from_files is None or value in setting.from_files:
            return True
        if trusted_files().get(str(self.path.resolve())) == self.digest:
            return True
        warn_once(
            f"{self.path} sets {setting.name} to {self.table[setting.name]!r}, which is ignored: "
            "an untrusted file can neither select code to run nor files to write; use "
            f"`demitasse trust {self.path}`, or set {setting.variable} in the environment"
        )
        return False


def working_folder() -> str:
    """Return the working directory; an empty string, and a warning, if it has been deleted."""
    try:
        return os.getcwd()  # noqa: PTH109 - see nearest_files
    except OSError as error:
        warn_once(f"settings files are ignored: the working directory is gone ({error.strerror})")
        return ""


def nearest_files(folder: str) -> Iterator[SettingsFile]:
    """Yield the settings files of ``folder``, or of its nearest parent that has one.

    Every net calls this several times, so paths are strings: making Path objects takes longer than
    the search. An empty string has no files (see ``working_folder``).
    """
    for paths in _candidates(folder):
        files = [file for path in paths if (file := settings_file(path)) is not None]
        if files:
            yield from files
            return


@lru_cache(maxsize=64)
def _candidates(folder: str) -> list[list[str]]:
    """Return possible paths of settings files, for a folder and each of its parents."""
    if not folder:
        return []
    start = Path(folder)
    return [[str(place / name) for name in NAMES] for place in (start, *start.parents)]


def settings_file(path: str) -> SettingsFile | None:
    """Return a parsed settings file; None if it is missing, unsafe, or has no settings."""
    try:
        status = os.stat(path)  # noqa: PTH116 - see nearest_files
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return _read(path, status.st_mtime_ns, untrusted_reason(status))


@cache
def _read(name: str, changed: int, reason: str) -> SettingsFile | None:
    """Parse a settings file, once per modification time; a file with a ``reason`` is ignored."""
    del changed
    path = Path(name)
    keys = NAMES[path.name]
    table: Any = {}
    content = b""
    try:
        content = read_bytes(path)
        table = parse_toml(content)
    except (OSError, ValueError, RecursionError) as error:
        if keys:  # a broken pyproject.toml of another tool is not reported
            return None
        if not reason:
            message = f"{path} cannot be read: {error}"
            raise ConfigError(message, code=ErrorCode.UNREADABLE, file=str(path)) from None
    for key in keys:
        table = table.get(key) if isinstance(table, dict) else None
    if not isinstance(table, dict) or (keys and not table):
        return None
    if reason:
        warn_once(f"the settings in {path} are ignored: {reason}")
        return None
    current: dict[str, object] = {}
    for key, value in table.items():
        present = CURRENT_NAMES.get(key, key)
        if present not in TABLE:
            message = (
                f"{path} contains the unknown setting {key!r}{suggestion(key, TABLE)}; "
                f"known are {', '.join(TABLE)}"
            )
            raise ConfigError(message, code=ErrorCode.UNKNOWN, file=str(path), setting=key)
        if present != key:
            log_once(log, f"{key} in {path}", present)
        if present == key or present not in table:
            current[present] = value
    return SettingsFile(path, current, sha256(content).hexdigest())


def untrusted_reason(status: os.stat_result, *, strict: bool = False, sticky: bool = False) -> str:
    """Return why another user may have written a file, and the remedy; an empty string if not.

    Args:
        status: Status of the file.
        strict: True if members of the user's own group are other users.
        sticky: True to accept a folder that other users can write if its sticky bit is set, which
            protects the files of the user.
    """
    if os.name != "posix":  # owner and mode carry no information elsewhere
        return ""
    if status.st_uid not in {0, os.geteuid()}:
        return f"it belongs to another user (uid {status.st_uid}); make your own copy"
    # many systems give every user a private group and create files that the group can write
    own_group = status.st_gid == os.getegid() and not strict
    writers = stat.S_IWOTH if own_group else stat.S_IWGRP | stat.S_IWOTH
    if status.st_mode & writers and not (sticky and status.st_mode & stat.S_ISVTX):
        mode = stat.filemode(status.st_mode)
        return f"other users can write it ({mode}); run chmod go-w"
    return ""


def trust_list() -> Path:
    """Return the path of the list of trusted files, which may not exist."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    folder = Path(base) if Path(base).is_absolute() else Path.home() / ".config"
    return folder / "demitasse" / "trusted.json"


def trusted_files() -> dict[str, str]:
    """Return path and SHA-256 of each trusted file; a list that others can write is empty."""
    try:
        path = trust_list()
        status = path.stat()
    except (OSError, RuntimeError):  # no list; no home folder
        return {}
    reason = untrusted_reason(status) or untrusted_reason(path.parent.stat())
    return _read_trust_list(path, status.st_mtime_ns, reason)


def trust(path: Path) -> None:
    """Add a file, with its present content, to the list of trusted files.

    Raises:
        ConfigError: Another user owns or can write the file or its folder.
        OSError: The file cannot be read, or the list not written.
    """
    path = regular_file(path).resolve()
    for place in (path, path.parent):
        if reason := untrusted_reason(place.stat()):
            message = f"{place} cannot be trusted: {reason}"
            raise ConfigError(message, code=ErrorCode.UNTRUSTED, file=str(place))
    _write_trust_list(trusted_files() | {str(path): sha256(path.read_bytes()).hexdigest()})


def distrust(path: Path) -> bool:
    """Remove a file from the list of trusted files; return False if it was not listed."""
    files = dict(trusted_files())
    listed = files.pop(str(path.resolve()), None) is not None
    if listed:
        _write_trust_list(files)
    return listed


def _write_trust_list(files: dict[str, str]) -> None:
    path = trust_list()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_bytes(path, json.dumps(files, indent=1).encode())


@cache
def _read_trust_list(path: Path, changed: int, reason: str) -> dict[str, str]:
    """Read the list, once per modification time."""
    del changed
    if reason:
        log.warning("the list of trusted files %s is ignored: %s", path, reason)
        return {}
    try:
        files = json.loads(read_bytes(path))
        return {str(name): str(value) for name, value in files.items()}
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        log.warning("the list of trusted files %s cannot be read: %s", path, error)
        return {}


@cache
def warn_once(message: str) -> None:
    """Log a warning once per process."""
    log.warning(message)


TABLE_BYTES = 1000  # memory of a parsed table

SPARE, FACTOR = 16 << 20, 20
"""Bytes of memory that tables may take in any case, and times the size of the file."""


def parse_toml(content: bytes) -> dict[str, Any]:
    """Return the table in the bytes of a TOML file, with or without a byte order mark.

    Raises:
        ValueError: The bytes are no TOML, or nearly all of them are headers of tables.
        RecursionError: Values are nested too deeply.
    """
    tables = content.count(b"\n[") + content.count(b".")
    if tables * TABLE_BYTES > SPARE + FACTOR * len(content):
        message = f"got up to {tables} tables in {len(content)} bytes, expected fewer"
        raise ValueError(message)
    return tomllib.loads(content.decode("utf-8-sig"))
