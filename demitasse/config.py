"""Settings, and where each value came from.

A value is looked for in this order: set by the program, ``DEMITASSE_<NAME>`` in the environment,
``demitasse.toml`` or ``[tool.demitasse]`` in ``pyproject.toml`` (in the working directory or the
nearest folder above it that has one), the default.

A file may have been left there by somebody else. So it cannot make code be loaded or run, only
forbid it, nor name files to be written, and a file that another user owns or can write is ignored.
"""

from __future__ import annotations

import itertools
import logging
import os
import stat
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from demitasse.errors import ConfigError

__all__ = ["Setting", "Settings", "Value", "settings"]

log = logging.getLogger(__name__)


def _flag(value: object) -> bool:
    text = str(value).strip().lower()
    if text in {"1", "true", "yes", "on"}:
        return True
    if text in {"0", "false", "no", "off", ""}:
        return False
    message = f"{value!r} is neither true nor false; write 1 or 0"
    raise ValueError(message)


def _word(value: object) -> str:
    return str(value).strip().lower()


def _whole(value: object) -> int:
    """Read a whole number; True and 2.5 are none, though ``int`` would take them."""
    number = value if isinstance(value, int) else int(str(value))
    if isinstance(number, bool):
        message = f"{value!r} is no whole number"
        raise TypeError(message)
    return number


@dataclass(frozen=True)
class Setting:
    """One thing that can be set.

    Attributes:
        name: What it is called in files and in Python.
        read: Makes a value of what was written; ValueError if it cannot.
        default: The value where nothing is set.
        meaning: What it is for.
        choices: The values there are; none given: any.
        at_least: The smallest number it may be, or None.
        from_files: The values that settings files may give; None: any. For a setting that decides
            which code is loaded or run, those that forbid it; none for one that names files to be
            written.
    """

    name: str
    read: Callable[[Any], object]
    default: object
    meaning: str
    choices: tuple[object, ...] = ()
    at_least: int | None = None
    from_files: tuple[object, ...] | None = None

    def value_of(self, raw: object) -> object:
        """Return the value of what was written.

        Raises:
            ValueError: It cannot be read, or is not allowed; says what is.
        """
        value = self.read(raw)
        if self.choices and value not in self.choices:
            message = f"it must be one of {', '.join(map(str, self.choices))}"
            raise ValueError(message)
        if self.at_least is not None and isinstance(value, int) and value < self.at_least:
            message = f"it must be at least {self.at_least}"
            raise ValueError(message)
        return value

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"DEMITASSE_{self.name.upper()}"


@dataclass(frozen=True)
class Value:
    """A setting's value and where it came from."""

    value: Any
    where: str


TABLE = {
    setting.name: setting
    for setting in (
        Setting("device", str, "cpu", "where nets run when nobody says otherwise"),
        Setting(
            "gpu_fallback",
            _word,
            "error",
            "where a GPU is asked for and there is none: an error, or the cpu with a warning",
            choices=("error", "cpu"),
        ),
        Setting("plan", _flag, True, "run lowered operations; off: every layer's portable code"),
        Setting(
            "seed",
            _whole,
            -1,
            "seed of fillers, dropout and augmentation; -1: a fresh one",
            at_least=-1,
        ),
        Setting("poison", _flag, False, "fill the stale side of every memory with NaN (debugging)"),
        Setting(
            "python_layers",
            _flag,
            True,
            "whether a net may import modules for Python layers",
            from_files=(False,),
        ),
        Setting(
            "log_level",
            _word,
            "info",
            "least severe messages that are logged",
            choices=("debug", "info", "warning", "error", "critical"),
        ),
        Setting(
            "threads",
            _whole,
            0,
            "threads of the CPU kernels; 0: as many as the machine has",
            at_least=0,
        ),
        Setting(
            "on_error",
            _word,
            "raise",
            "broken records: raise, or skip to the next one",
            choices=("raise", "skip"),
        ),
        Setting(
            "onednn_library",
            str,
            "",
            "file of oneDNN's library; none: do without it",
            from_files=("none",),
        ),
        Setting(
            "jit",
            _flag,
            True,
            "make kernels for the processor at run time, with LLVM",
            from_files=(False,),
        ),
        Setting(
            "winograd",
            _flag,
            True,
            "convolve by Winograd's minimal filtering on cpu where it is faster",
        ),
        Setting(
            "kernel_dump",
            str,
            "",
            "folder that the text and assembly of kernels made at run time are written to",
            from_files=(),
        ),
        Setting("tf32", _flag, False, "let float32 products on a GPU round their inputs to TF32"),
    )
}


class _Override:
    """One ``with settings.override(...)``: the value it gives one setting; None for none."""

    def __init__(self, value: object) -> None:
        self.value = value


class Settings:
    """The settings of this process; threads may change them at the same time."""

    def __init__(self) -> None:
        self._set: dict[str, object] = {}
        self._overrides: dict[str, tuple[_Override, ...]] = {}
        self._kept: dict[str, tuple[object, object]] = {}
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self.changes = 0
        """Another number after each change by the program; so values may be kept, as reading takes
        time."""

    def find(self, name: str) -> Value:
        """Return the value of ``name`` and where it came from.

        Raises:
            ConfigError: There is no such setting, or its value cannot be read.
        """
        setting = self._setting(name)
        program = self._of_program(name)
        if program is not None:
            return Value(program, "set by the program")
        if setting.variable in os.environ:
            return self._read(setting, os.environ[setting.variable], setting.variable)
        for path, table in _files(Path.cwd()):
            if name in table:
                found = self._read(setting, table[name], str(path))
                if setting.from_files is None or found.value in setting.from_files:
                    return found
                _warn(
                    f"{path} sets {name} to {table[name]!r}, which is ignored: a file cannot say "
                    "which code is loaded or run, nor where files are written; "
                    f"set {setting.variable} in the environment"
                )
        return Value(setting.default, "default")

    def get(self, name: str) -> Any:
        """Return the value of ``name``."""
        return self.find(name).value

    def get_often(self, name: str) -> Any:
        """Return the value of ``name``, for code that asks thousands of times.

        What was found is kept until the program changes a setting, or the environment variable or
        the working directory changes; a settings file that changes meanwhile is not looked at.
        """
        variable = self._setting(name).variable
        asked = (self.changes, os.environ.get(variable), os.getcwd())  # noqa: PTH109 - the fast way
        kept = self._kept.get(name)
        if kept is None or kept[0] != asked:
            kept = self._kept[name] = (asked, self.get(name))
        return kept[1]

    def where(self, name: str) -> str:
        """Say where the value of ``name`` comes from."""
        return self.find(name).where

    def set(self, name: str, value: object) -> None:
        """Set ``name`` for the rest of the process; None takes the program's value back.

        Where an ``override`` of the same setting is in force, it wins until its block ends.
        """
        checked = self._checked(name, value)
        with self._lock:
            if checked is None:
                self._set.pop(name, None)
            else:
                self._set[name] = checked
            self.changes = next(self._numbers)

    @contextmanager
    def override(self, **values: object) -> Iterator[None]:
        """Set some values, for all threads, until the end of the ``with`` block.

        Of several blocks that set one setting, the one that began last wins; each takes back its
        own value alone when it ends, in whichever order they do.
        """
        mine = {name: _Override(self._checked(name, value)) for name, value in values.items()}
        with self._lock:
            for name, one in mine.items():
                self._overrides[name] = (*self._overrides.get(name, ()), one)
            self.changes = next(self._numbers)
        try:
            yield
        finally:
            with self._lock:
                for name, one in mine.items():
                    self._overrides[name] = tuple(o for o in self._overrides[name] if o is not one)
                self.changes = next(self._numbers)

    def names(self) -> list[str]:
        """Names of all settings, in the order of the documentation."""
        return list(TABLE)

    def _of_program(self, name: str) -> object:
        """Return what the program set, or None."""
        overrides = self._overrides.get(name)
        return overrides[-1].value if overrides else self._set.get(name)

    def _checked(self, name: str, value: object) -> object:
        """Return a value that the program gives; None stays None."""
        setting = self._setting(name)
        return None if value is None else self._read(setting, value, "the program").value

    @staticmethod
    def _setting(name: str) -> Setting:
        try:
            return TABLE[name]
        except KeyError:
            message = f"there is no setting {name!r}; known are {', '.join(TABLE)}"
            raise ConfigError(message) from None

    @staticmethod
    def _read(setting: Setting, raw: object, where: str) -> Value:
        try:
            return Value(setting.value_of(raw), where)
        except (TypeError, ValueError) as error:
            message = f"{where} sets {setting.name} to {raw!r}: {error}"
            raise ConfigError(message) from None


def _files(folder: Path) -> Iterator[tuple[Path, dict[str, object]]]:
    """Yield the settings table of the nearest folder that has one."""
    for place in (folder, *folder.parents):
        found = False
        for name, keys in (("demitasse.toml", ()), ("pyproject.toml", ("tool", "demitasse"))):
            path = place / name
            if path.is_file():
                table = _table(path, keys)
                if table is not None:
                    found = True
                    yield path, table
        if found:
            return


def _table(path: Path, keys: tuple[str, ...]) -> dict[str, object] | None:
    status = path.stat()
    return _read_table(path, keys, status.st_mtime_ns, _doubt(status))


@cache
def _read_table(
    path: Path, keys: tuple[str, ...], changed: int, doubt: str
) -> dict[str, object] | None:
    """Read a settings file once for each time it changed; one that is in doubt counts as absent."""
    del changed
    try:
        table: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        if keys:  # somebody else's pyproject.toml is not ours to complain about
            return None
        if not doubt:
            message = f"{path} cannot be read: {error}"
            raise ConfigError(message) from None
        table = {}
    for key in keys:
        table = table.get(key, {})
    if not isinstance(table, dict) or (keys and not table):
        return None
    if doubt:
        _warn(f"the settings in {path} are ignored: {doubt}")
        return None
    return table


def _doubt(status: os.stat_result) -> str:
    """Say why a settings file may not be the user's own, and what to do; else nothing."""
    if os.name != "posix":  # elsewhere neither owner nor mode tells
        return ""
    if status.st_uid not in {0, os.geteuid()}:
        return f"it belongs to another user (uid {status.st_uid}); make a copy that is yours"
    # many systems give every user a group of his own, and new files are writable for that group
    own_group = status.st_gid == os.getegid()
    if status.st_mode & (stat.S_IWOTH if own_group else stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.filemode(status.st_mode)
        return f"other users can write it ({mode}); chmod go-w takes that from them"
    return ""


@cache
def _warn(message: str) -> None:
    """Warn once in a process."""
    log.warning(message)


settings = Settings()
