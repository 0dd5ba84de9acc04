"""The settings of this process, and where each value came from.

A value is looked for in this order: set by the program, ``DEMITASSE_<NAME>`` in the environment,
``demitasse.toml`` or ``[tool.demitasse]`` in ``pyproject.toml`` (in the working directory or the
nearest folder above it that has one), the default.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demitasse.core.config.environment import check_variables
from demitasse.core.config.files import nearest_files, working_folder
from demitasse.core.config.table import TABLE, Setting
from demitasse.core.suggest import suggestion
from demitasse.errors import ConfigError

__all__ = ["Settings", "Value", "settings"]


@dataclass(frozen=True)
class Value:
    """A setting's value and where it came from."""

    value: Any
    where: str
    folder: Path | None = None
    """Folder of the file that gave it, which relative names in it are relative to."""


class _Override:
    """One ``with settings.override(...)``: the value it gives one setting; None for none."""

    def __init__(self, value: object) -> None:
        self.value = value


class Settings:
    """The settings of this process; threads may change them at the same time."""

    def __init__(self) -> None:
        self._set: dict[str, object] = {}
        self._overrides: dict[str, tuple[_Override, ...]] = {}
        self._kept: dict[str, tuple[str, object, object]] = {}
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self.changes = 0
        """Another number after each change by the program; so values may be kept, as reading takes
        time."""

    def find(self, name: str) -> Value:
        """Return the value of ``name`` and where it came from.

        Raises:
            ConfigError: There is no such setting, or its value cannot be read; or the environment
                or a settings file has a name that is none of ours.
        """
        setting = self._setting(name)
        check_variables()
        program = self._of_program(name)
        if program is not None:
            return Value(program, "set by the program")
        if setting.variable in os.environ:
            return self._read(setting, os.environ[setting.variable], setting.variable)
        for file in nearest_files(working_folder()):
            if name in file.table:
                found = self._read(setting, file.table[name], str(file.path), file.path.parent)
                if file.may(setting, found.value):
                    return found
        return Value(setting.default, "default")

    def get(self, name: str) -> Any:
        """Return the value of ``name``."""
        return self.find(name).value

    def get_often(self, name: str) -> Any:
        """Return the value of ``name``, for code that asks thousands of times.

        What was found is kept until the program changes a setting, or the environment variable or
        the working directory changes; a settings file that changes meanwhile is not looked at.
        """
        variable, known, value = self._kept.get(name) or (self._setting(name).variable, None, None)
        asked = (self.changes, os.environ.get(variable), working_folder())
        if known != asked:
            value = self.get(name)
            self._kept[name] = (variable, asked, value)
        return value

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
            near = suggestion(name, TABLE)
            message = f"there is no setting {name!r}{near}; known are {', '.join(TABLE)}"
            raise ConfigError(message) from None

    @staticmethod
    def _read(setting: Setting, raw: object, where: str, folder: Path | None = None) -> Value:
        try:
            return Value(setting.value_of(raw), where, folder)
        except (TypeError, ValueError) as error:
            message = f"{where} sets {setting.name} to {raw!r}: {error}"
            raise ConfigError(message) from None


settings = Settings()
