"""The settings of this process, and the source of each value.

Sources, strongest first: the program, ``DEMITASSE_<NAME>`` in the environment, ``demitasse.toml``
or ``[tool.demitasse]`` in ``pyproject.toml`` (of the working directory or the nearest parent that
has one), the default.
"""

import itertools
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from demitasse.core.config.files import nearest_files, working_folder
from demitasse.core.config.table import CURRENT_NAMES, OTHER_VARIABLES, PREFIX, TABLE, Setting
from demitasse.core.deprecated import log_once, warn_once
from demitasse.core.text import suggestion
from demitasse.errors import ConfigError, ErrorCode

log = logging.getLogger(__name__)

_PREFIX_BYTES = os.fsencode(PREFIX)

PROGRAM = "the program"


@dataclass(frozen=True)
class Value:
    """A setting's value and its source."""

    value: Any
    where: str
    folder: Path | None = None
    """Folder of the settings file, to which relative names in the value refer."""


class _Override:
    """Value of a setting in one ``with settings.override(...)``; None for no value."""

    def __init__(self, value: object) -> None:
        self.value = value


class Settings:
    """The settings of this process; thread-safe."""

    def __init__(self) -> None:
        self._set: dict[str, object] = {}
        self._overrides: dict[str, tuple[_Override, ...]] = {}
        self._cached: dict[str, tuple[tuple[str, ...], object, object]] = {}
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self.changes = 0
        """Version number: differs after each change by the program, so values may be cached."""

    def find(self, name: str) -> Value:
        """Return the value of ``name`` and its source.

        Raises:
            ConfigError: The setting is unknown or has an invalid value, or the environment or a
                settings file has an unknown name.
        """
        setting = self._setting(name)
        check_variables()
        overrides = self._overrides.get(setting.name)
        program = overrides[-1].value if overrides else self._set.get(setting.name)
        if program is not None:
            return Value(program, "set by the program")
        for variable in setting.variables:
            if variable in os.environ:
                if variable != setting.variable:
                    log_once(log, variable, setting.variable)
                return self._read(setting, os.environ[variable], variable)
        for file in nearest_files(working_folder()):
            if setting.name in file.table:
                raw = file.table[setting.name]
                value = self._read(setting, raw, str(file.path), file.path.parent)
                if file.may_set(setting, value.value):
                    return value
        return Value(setting.default, "default")

    def get(self, name: str) -> Any:
        """Return the value of ``name``."""
        return self.find(name).value

    def get_often(self, name: str) -> Any:
        """Return the value of ``name`` from a cache, for code on hot paths.

        The cache is valid until the program changes a setting, or the environment variable or the
        working directory changes. Changes of a settings file are not noticed.
        """
        cached = self._cached.get(name)
        variables, known, value = cached or (self._setting(name).variables, None, None)
        # a look for a variable takes less time than ``get``, which raises where there is none
        given = [(one, os.environ[one]) for one in variables if one in os.environ]
        state = (self.changes, given, working_folder())
        if known != state:
            value = self.get(name)
            self._cached[name] = (variables, state, value)
        return value

    def where(self, name: str) -> str:
        """Return the source of the value of ``name``."""
        return self.find(name).where

    def set(self, name: str, value: object) -> None:
        """Set ``name`` for the rest of the process; None removes the program's value.

        An active ``override`` of the same setting wins until its block ends.
        """
        setting = self._setting(name)
        checked = self._checked(setting, value)
        with self._lock:
            if checked is None:
                self._set.pop(setting.name, None)
            else:
                self._set[setting.name] = checked
            self.changes = next(self._numbers)

    @contextmanager
    def override(self, **values: object) -> Iterator[None]:
        """Set values, for all threads, until the end of the ``with`` block.

        If several blocks set one setting, the block that began last wins. Each block removes only
        its own value when it ends, in any order.
        """
        mine: dict[str, _Override] = {}
        for name, value in values.items():
            setting = self._setting(name)
            mine[setting.name] = _Override(self._checked(setting, value))
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
        """Return the names of all settings, in the order of the documentation."""
        return list(TABLE)

    def _checked(self, setting: Setting, value: object) -> object:
        """Return a value of the program, converted; None stays None."""
        return None if value is None else self._read(setting, value, PROGRAM).value

    @staticmethod
    def _setting(name: str) -> Setting:
        setting = TABLE.get(name)
        if setting is not None:
            return setting
        if name in CURRENT_NAMES:
            new = CURRENT_NAMES[name]
            warn_once(f"setting {name!r}", f"{new!r}", stacklevel=5)
            return TABLE[new]
        near = suggestion(name, TABLE)
        message = f"unknown setting {name!r}{near}; known are {', '.join(TABLE)}"
        raise ConfigError(message, code=ErrorCode.UNKNOWN, setting=name)

    @staticmethod
    def _read(setting: Setting, raw: object, where: str, folder: Path | None = None) -> Value:
        old = raw.strip().lower() if isinstance(raw, str) else ""
        if old in setting.old_values:
            raw = setting.old_values[old]
            names = f"{where}: {setting.name}={old}", f"{setting.name}={raw}"
            if where == PROGRAM:
                warn_once(*names, stacklevel=5)
            else:
                log_once(log, *names)
        try:
            return Value(setting.value_of(raw), where, folder)
        except ConfigError as error:
            message = f"{where} sets {setting.name} to {raw!r}: {error}"
            details: Any = {"setting": setting.name, "got": raw, "where": where, **error.details}
            raise ConfigError(message, code=error.code, **details) from None


def check_variables() -> None:
    """Raise a ConfigError unless every environment variable with our prefix is known."""
    if os.supports_bytes_environ:  # the environment is bytes, and decoding all of it is slow
        ours = tuple(name for name in os.environb if name.startswith(_PREFIX_BYTES))
        _check(tuple(map(os.fsdecode, ours)))
    else:
        _check(tuple(name for name in os.environ if name.startswith(PREFIX)))


@cache
def _check(names: tuple[str, ...]) -> None:
    known = [*(setting.variable for setting in TABLE.values()), *OTHER_VARIABLES]
    accepted = {*known, *(name for setting in TABLE.values() for name in setting.variables)}
    for name in names:
        if name not in accepted:
            message = (
                f"unknown environment variable {name}{suggestion(name, known)}; "
                f"known are {', '.join(known)}"
            )
            raise ConfigError(message, code=ErrorCode.UNKNOWN, variable=name)


settings = Settings()


def seed(value: int | None) -> None:
    """Set the seed of fillers, dropout and augmentation for nets and solvers made from now on.

    Args:
        value: The seed, at least 0; -1 for a fresh one, None for that of the settings files.

    Raises:
        ConfigError: The value is not a seed.
    """
    settings.set("seed", value)
