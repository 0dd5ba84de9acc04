"""Deferred calls of compiled code, issued back to back.

Python takes a few microseconds to prepare an operation, but ten times as long after an operation
that filled the caches. A pass therefore prepares many operations while Python's data are in the
caches, and then issues all calls. Calls can also be captured for replay without preparation.

Each thread has its own list of deferred calls.
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
"""Returns arguments that stay valid for replay, and the object that owns their memory."""


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
    """Set to False if something is computed without calls."""

    def add(self, call: Call) -> None:
        """Record an issued call."""


class _OfThread(threading.local):
    calls: list[Call] | None = None
    listener: Listener | None = None
    turn = 0


_own = _OfThread()


def hold() -> None:
    """Defer the calls of :func:`put` until :func:`settle`.

    Deferred calls of an interrupted pass are dropped.
    """
    _own.calls = []


def held() -> bool:
    """Return whether calls are deferred now."""
    return _own.calls is not None


def turn() -> int:
    """Return the epoch: a number that changes when the deferred calls are issued."""
    return _own.turn


def put(
    function: Any,
    arguments: tuple[Any, ...],
    needs: object,
    checked: Checked | None = None,
    fixed: Fixed | None = None,
) -> None:
    """Call a compiled function, now or with the deferred calls.

    Args:
        function: The function.
        arguments: Its arguments.
        needs: Object to keep alive until the call.
        checked: Raises an error for a result other than 0; None for functions without a result.
        fixed: Called with the call; returns arguments for replay. None if the memory that the
            arguments point at never changes.
    """
    call = Call(function, arguments, needs, checked, fixed)
    if _own.calls is None:
        _make(call)
    else:
        _own.calls.append(call)


def flush() -> None:
    """Issue the deferred calls."""
    calls = _own.calls
    if not calls:
        return
    _own.calls = []
    _own.turn += 1
    for call in calls:
        _make(call)


@contextmanager
def at_once() -> Iterator[None]:
    """Issue the deferred calls, and do not defer calls in the block."""
    held = _own.calls is not None
    settle()
    try:
        yield
    finally:
        if held:
            hold()


@contextmanager
def note(listener: Listener) -> Iterator[None]:
    """Record the calls that are issued in the block with a listener."""
    _own.listener = listener
    try:
        yield
    finally:
        _own.listener = None


def spoil() -> None:
    """Mark the recorded calls as incomplete: something was computed without calls."""
    if _own.listener is not None:
        _own.listener.whole = False


def _make(call: Call) -> None:
    status = call.function(*call.arguments)
    if status and call.checked is not None:
        call.checked(status)
    if _own.listener is not None:
        _own.listener.add(call)


def settle() -> None:
    """Issue the deferred calls, and stop deferring."""
    try:
        flush()
    finally:
        _own.calls = None
