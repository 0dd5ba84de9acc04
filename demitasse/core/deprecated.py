"""Old public names, which work for one more release and warn once per process."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar, cast

__all__ = ["deprecated_attribute", "log_once", "renamed_arguments", "warn_once"]

Function = TypeVar("Function", bound=Callable[..., Any])

_warned: set[str] = set()


def warn_once(old: str, new: str, *, stacklevel: int = 3) -> None:
    """Warn that a public name is deprecated, the first time in this process.

    Args:
        old: The old name, as the user wrote it.
        new: The name to use.
        stacklevel: Frames from here to the user's code.
    """
    if old in _warned:
        return
    _warned.add(old)
    message = f"{old} is deprecated and goes with the next release; use {new}"
    warnings.warn(message, DeprecationWarning, stacklevel=stacklevel)


def log_once(log: logging.Logger, old: str, new: str) -> None:
    """Log a warning that a flag, a setting in a file or a variable is deprecated, the first time.

    Args:
        log: Logger of the calling module.
        old: The old name, as the user wrote it.
        new: The name to use.
    """
    if old not in _warned:
        _warned.add(old)
        log.warning("%s is deprecated and goes with the next release; use %s", old, new)


def deprecated_attribute(owner: str, old: str, new: str) -> Any:
    """Return a property that warns and reads or sets the attribute of the new name.

    Args:
        owner: Name of the class, for the warning.
        old: Old name of the attribute or method.
        new: Its new name.
    """

    def read(self: Any) -> Any:
        warn_once(f"{owner}.{old}", f"{owner}.{new}")
        return getattr(self, new)

    def write(self: Any, value: Any) -> None:
        warn_once(f"{owner}.{old}", f"{owner}.{new}")
        setattr(self, new, value)

    return property(read, write, doc=f"Deprecated name of ``{new}``.")


def renamed_arguments(**names: str) -> Callable[[Function], Function]:
    """Return a decorator under which a function accepts old names of keyword arguments.

    Args:
        names: New name of each argument by its old name.

    Raises:
        TypeError: A call gives an argument by both names.
    """

    def decorate(function: Function) -> Function:
        @wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            return function(*args, **_translated(function.__qualname__, names, given))

        return cast("Function", call)

    return decorate


def _translated(
    function: str, names: Mapping[str, str], given: Mapping[str, Any]
) -> dict[str, Any]:
    if names.keys().isdisjoint(given):
        return dict(given)
    out: dict[str, Any] = {}
    for name, value in given.items():
        new = names.get(name, name)
        if new != name:
            warn_once(f"argument {name} of {function}", new, stacklevel=4)
        if new in out or (new != name and new in given):
            message = f"{function} got {new} twice: {name} is its old name"
            raise TypeError(message)
        out[new] = value
    return out
