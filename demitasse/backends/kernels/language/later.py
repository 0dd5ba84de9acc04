"""Work that is put off, so that many calls of compiled code follow each other directly.

To look after memories and addresses takes Python a few microseconds for each operation, but ten
times as long where the operation before has filled the caches with its own data. So a pass makes
many operations ready while Python's data are in the caches, and then runs them all. Calls may also
be noted, to be made again without all that.

Each thread has its own list of what it put off.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

__all__ = [
    "Call", "Checked", "Fixed", "Listener", "at_once", "flush", "held", "hold", "note", "put",
    "settle", "spoil", "turn",
]  # fmt: skip

Checked = Callable[[int], None]

Fixed = Callable[[], tuple[tuple[Any, ...], object]]
"""Returns arguments that mean what those of a call mean now, whatever comes, and what they need."""


class Call(NamedTuple):
    """A call of compiled code; see ``put``."""

    function: Any
    arguments: tuple[Any, ...]
    needs: object
    checked: Checked | None
    fixed: Fixed | None


class Listener(Protocol):
    """Callback for calls that are made."""

    whole: bool
    """Is set to False where something is computed otherwise than by calls."""

    def add(self, call: Call) -> None:
        """Take note of a call that has been made."""


class _OfThread(threading.local):
    calls: list[Call] | None = None
    listener: Listener | None = None
    turn = 0


_own = _OfThread()


def hold() -> None:
    """Put off what is given to :func:`put` from now on, until :func:`settle`.

    What an interrupted pass has left behind is forgotten.
    """
    _own.calls = []


def held() -> bool:
    """Return whether work is put off now."""
    return _own.calls is not None


def turn() -> int:
    """Return a number that is another one once everything that is put off now has been done."""
    return _own.turn


def put(
    function: Any,
    arguments: tuple[Any, ...],
    needs: object,
    checked: Checked | None = None,
    fixed: Fixed | None = None,
) -> None:
    """Call a function of compiled code, at once or later.

    Args:
        function: The function.
        arguments: Its arguments.
        needs: Is kept alive until then.
        checked: Raises an error for a result other than 0; None where the function has none.
        fixed: Returns such arguments for later calls, asked when the call is made. None where what
            the arguments point at never changes.
    """
    call = Call(function, arguments, needs, checked, fixed)
    if _own.calls is None:
        _make(call)
    else:
        _own.calls.append(call)


def flush() -> None:
    """Do what was put off."""
    calls = _own.calls
    if not calls:
        return
    _own.calls = []
    _own.turn += 1
    for call in calls:
        _make(call)


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


@contextmanager
def note(listener: Listener) -> Iterator[None]:
    """Tell somebody of the calls that are made in the block."""
    _own.listener = listener
    try:
        yield
    finally:
        _own.listener = None


def spoil() -> None:
    """Say that something was computed otherwise than by calls."""
    if _own.listener is not None:
        _own.listener.whole = False


def _make(call: Call) -> None:
    status = call.function(*call.arguments)
    if status and call.checked is not None:
        call.checked(status)
    if _own.listener is not None:
        _own.listener.add(call)


def settle() -> None:
    """Do what was put off; nothing is, from now on."""
    try:
        flush()
    finally:
        _own.calls = None
