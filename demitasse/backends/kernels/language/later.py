"""Work that is put off, so that many calls of compiled code follow each other directly.

To look after memories and addresses takes Python a few microseconds for each operation, but ten
times as long where the operation before has filled the caches with its own data. So a pass makes
many operations ready while Python's data are in the caches, and then runs them all.

Each thread has its own list of what it put off.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["at_once", "flush", "held", "hold", "put", "settle", "turn"]

Checked = Callable[[int], None]


class _OfThread(threading.local):
    calls: list[tuple[Any, tuple[Any, ...], object, Checked | None]] | None = None
    turn = 0


_own = _OfThread()


def hold() -> None:
    """Put off what is given to :func:`put` from now on, until :func:`settle`.

    What an interrupted pass has left behind is forgotten.
    """
    _own.calls = []


def held() -> bool:
    """Whether work is put off now."""
    return _own.calls is not None


def turn() -> int:
    """Return a number that is another one once everything that is put off now has been done."""
    return _own.turn


def put(
    function: Any, arguments: tuple[Any, ...], needs: object, checked: Checked | None = None
) -> None:
    """Call a function of compiled code, at once or later.

    Args:
        function: The function.
        arguments: Its arguments.
        needs: Is kept alive until then.
        checked: Raises an error for a result other than 0; None where the function has none.
    """
    calls = _own.calls
    if calls is None:
        _call(function, arguments, checked)
    else:
        calls.append((function, arguments, needs, checked))


def flush() -> None:
    """Do what was put off."""
    calls = _own.calls
    if not calls:
        return
    _own.calls = []
    _own.turn += 1
    for function, arguments, _, checked in calls:
        _call(function, arguments, checked)


@contextmanager
def at_once() -> Iterator[None]:
    """Do what was put off, and everything in the block at once; then go on as before."""
    held = _own.calls is not None
    settle()
    try:
        yield
    finally:
        if held:
            hold()


def _call(function: Any, arguments: tuple[Any, ...], checked: Checked | None) -> None:
    status = function(*arguments)
    if status and checked is not None:
        checked(status)


def settle() -> None:
    """Do what was put off; nothing is, from now on."""
    try:
        flush()
    finally:
        _own.calls = None
