"""Settings files: ``demitasse.toml``, and ``[tool.demitasse]`` in ``pyproject.toml``.

A file may have been left there by somebody else. So it cannot make code be loaded or run, only
forbid it, nor name files to be written, unless the user has said that he trusts it; and a file that
another user owns or can write is ignored.
"""

from __future__ import annotations

import logging
import os
import stat
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from demitasse.core.config import trust
from demitasse.core.config.owners import doubt
from demitasse.core.config.table import TABLE, Setting
from demitasse.core.paths import bytes_in
from demitasse.core.suggest import suggestion
from demitasse.errors import ConfigError

__all__ = ["SettingsFile", "nearest_files", "settings_file", "working_folder"]

log = logging.getLogger(__name__)

NAMES = {"demitasse.toml": (), "pyproject.toml": ("tool", "demitasse")}
"""File -> the table in it that is ours."""


@dataclass(frozen=True)
class SettingsFile:
    """A settings file as it was read.

    Attributes:
        path: Where it is.
        table: What it says, by the names of settings.
        digest: Of its bytes.
    """

    path: Path
    table: Mapping[str, object]
    digest: str

    def may(self, setting: Setting, value: object) -> bool:
        """Whether the file may give a setting this value; warns where not."""
        if setting.from_files is None or value in setting.from_files:
            return True
        if trust.trusted(self.path, self.digest):
            return True
        _warn(
            f"{self.path} sets {setting.name} to {self.table[setting.name]!r}, which is ignored: a "
            "file cannot say which code is loaded or run, nor where files are written, unless you "
            f"trust it: `demitasse trust {self.path}`, or set {setting.variable} in the environment"
        )
        return False


def working_folder() -> str:
    """Return the working directory; an empty text, and a warning, where it has been deleted."""
    try:
        return os.getcwd()  # noqa: PTH109 - see nearest_files
    except OSError as error:
        _warn(f"no settings file is looked for: the working directory is gone ({error.strerror})")
        return ""


def nearest_files(folder: str) -> Iterator[SettingsFile]:
    """Yield the settings files of the nearest folder, from ``folder`` upwards, that has one.

    There is none for an empty text, see ``working_folder``.

    Every net asks some times, so names are strings here: making paths takes longer than looking.

    Raises:
        ConfigError: One cannot be read, or sets what is no setting.
    """
    for paths in _places(folder):
        found = [file for path in paths if (file := settings_file(path)) is not None]
        if found:
            yield from found
            return


@lru_cache(maxsize=64)
def _places(folder: str) -> list[list[str]]:
    """Return where a folder and each one above it may have settings files."""
    if not folder:
        return []
    start = Path(folder)
    return [[str(place / name) for name in NAMES] for place in (start, *start.parents)]


def settings_file(path: str) -> SettingsFile | None:
    """Return what a file sets; None where there is none, or where it does not count.

    Raises:
        ConfigError: It cannot be read, or sets what is no setting.
    """
    try:
        status = os.stat(path)  # noqa: PTH116 - see nearest_files
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return _read(path, status.st_mtime_ns, doubt(status))


@cache
def _read(name: str, changed: int, reason: str) -> SettingsFile | None:
    """Read a settings file once for each time it changed; one that is in doubt does not count."""
    del changed
    path = Path(name)
    keys = NAMES[path.name]
    table: Any = {}
    content = b""
    try:
        content = bytes_in(path)
        table = tomllib.loads(content.decode())
    except (OSError, ValueError, RecursionError) as error:
        if keys:  # somebody else's pyproject.toml is not ours to complain about
            return None
        if not reason:
            message = f"{path} cannot be read: {error}"
            raise ConfigError(message) from None
    for key in keys:
        table = table.get(key) if isinstance(table, dict) else None
    if not isinstance(table, dict) or (keys and not table):
        return None
    if reason:
        _warn(f"the settings in {path} are ignored: {reason}")
        return None
    for key in table:
        if key not in TABLE:
            message = (
                f"{path} sets {key!r}, which is no setting{suggestion(key, TABLE)}; "
                f"known are {', '.join(TABLE)}"
            )
            raise ConfigError(message)
    return SettingsFile(path, table, trust.digest(content))


@cache
def _warn(message: str) -> None:
    """Warn once in a process."""
    log.warning(message)
