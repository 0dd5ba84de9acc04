"""Command queue of compiled calls: deferred, issued back to back, recorded for replay.

Python takes a few microseconds to prepare a call, but ten times as long after a call that filled
the caches. A pass therefore prepares many calls while Python's data are in the caches, and then
issues all of them. A recording of issued calls is replayed without preparation: a compiled loop
issues the calls of a table.

Each thread has its own queue.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from itertools import groupby
from typing import Any, ClassVar, NamedTuple

import numpy as np

from demitasse.backends.arrays import address
from demitasse.backends.kernels.language.compiler import status
from demitasse.backends.kernels.language.team import compiled, function_address, parallel_call
from demitasse.backends.recording import NotRecorded

Check = Callable[[int], None]

ReplayArguments = Callable[[], tuple[tuple[Any, ...], object]]
"""Returns arguments that stay valid for replay, and the object that owns their memory."""

ISSUED = -1
"""Epoch of a call that was issued at once."""


class Call(NamedTuple):
    """A call of compiled code; see ``enqueue``."""

    function: Any
    arguments: tuple[Any, ...]
    keep_alive: object
    check: Check | None
    replay_arguments: ReplayArguments | None


class _OfThread(threading.local):
    calls: list[Call] | None = None
    recording: CallRecording | None = None
    epoch = 0


_own = _OfThread()


# -- the queue ---------------------------------------------------------------------------------


def begin() -> None:
    """Defer the calls of :func:`enqueue` until :func:`end`.

    Deferred calls of an interrupted pass are dropped.
    """
    _own.calls = []


def deferring() -> bool:
    """Return whether calls are deferred now."""
    return _own.calls is not None


def enqueue(
    function: Any,
    arguments: tuple[Any, ...],
    keep_alive: object,
    check: Check | None = None,
    replay_arguments: ReplayArguments | None = None,
) -> int:
    """Call a compiled function, now or with the deferred calls; return the epoch for :func:`wait`.

    Args:
        function: The function.
        arguments: Arguments of the call.
        keep_alive: Object to keep alive until the call.
        check: Raises an error for a result other than 0; None for functions without a result.
        replay_arguments: Called with the call; returns arguments for replay. None if the memory
            that the arguments point at never changes.
    """
    call = Call(function, arguments, keep_alive, check, replay_arguments)
    if _own.calls is None:
        _issue(call)
        return ISSUED
    _own.calls.append(call)
    return _own.epoch


def enqueue_kernel(
    kernel: int,
    argument: int,
    threads: int,
    keep_alive: object = None,
    replay_argument: Callable[[], tuple[int, object]] | None = None,
) -> int:
    """Run a kernel on a team of threads, as :func:`enqueue`.

    Args:
        kernel: Address of the kernel, which asks the runtime for its thread number.
        argument: Argument of each thread's call.
        threads: Greatest number of threads.
        keep_alive: Object to keep alive until the kernel has run.
        replay_argument: Returns a copy of the argument that later calls do not change, and the
            object that owns the copy; None if ``argument`` never changes.
    """
    function, arguments = parallel_call(kernel, threads)

    def replay_arguments() -> tuple[tuple[int, ...], object]:
        copy, owner = (argument, None) if replay_argument is None else replay_argument()
        return arguments(copy), owner

    return enqueue(function, arguments(argument), keep_alive, None, replay_arguments)


def wait(epoch: int) -> None:
    """Issue the deferred calls if a call of this epoch is among them."""
    if epoch == _own.epoch and _own.calls is not None:
        flush()


def flush() -> None:
    """Issue the deferred calls."""
    calls = _own.calls
    if not calls:
        return
    _own.calls = []
    _own.epoch += 1
    for call in calls:
        _issue(call)


def end() -> None:
    """Issue the deferred calls, and stop deferring."""
    try:
        flush()
    finally:
        _own.calls = None


@contextmanager
def immediate() -> Iterator[None]:
    """Issue the deferred calls, and do not defer calls in the block."""
    deferred = deferring()
    end()
    try:
        yield
    finally:
        if deferred:
            begin()


def mark_incomplete() -> None:
    """Mark the recording as incomplete: something was computed without calls."""
    if _own.recording is not None:
        _own.recording.complete = False


def _issue(call: Call) -> None:
    _call(call.function, call.arguments, call.check)
    if _own.recording is not None:
        _own.recording.add(call)


def _call(function: Any, arguments: tuple[Any, ...], check: Check | None) -> None:
    result = function(*arguments)
    if result and check is not None:
        check(result)


# -- recordings --------------------------------------------------------------------------------

ARGUMENTS = 4
"""Greatest number of arguments in a call table, all of them integers or addresses."""

COLUMNS = ARGUMENTS + 2
"""Columns of a call table: function, arguments, and a flag for checked results, which a failed
call's result overwrites."""


class CallRecorder:
    """Records the calls that some work issues; the work is done at the same time.

    Args:
        key: Returns the key of the recordings; see ``Recorder.key``.
    """

    computes: ClassVar = True

    def __init__(self, key: Callable[[], Hashable]) -> None:
        self.key = key

    def side_stream(self) -> AbstractContextManager[None]:
        return nullcontext()

    def record(self, work: Callable[[], object]) -> CallRecording:
        _own.recording = recording = CallRecording()
        try:
            work()
        finally:
            _own.recording = None
        if not recording.complete:
            message = "something is computed without compiled calls"
            raise NotRecorded(message)
        recording.prepare()
        return recording


class CallRecording:
    """Issued calls, in order.

    Attributes:
        complete: True if nothing was computed without the calls.
        compiled: True if a replay needs only call tables.
    """

    nbytes = 0

    def __init__(self) -> None:
        self.complete, self.compiled = True, False
        self._calls: list[tuple[Any, tuple[Any, ...], Check | None]] = []
        self._keep_alive: list[object] = []
        self._parts: list[Callable[[], None]] = []

    def add(self, call: Call) -> None:
        arguments, keep_alive = call.arguments, call.keep_alive
        if call.replay_arguments is not None:
            arguments, owner = call.replay_arguments()
            keep_alive = keep_alive, owner
        self._calls.append((call.function, arguments, call.check))
        self._keep_alive.append(keep_alive)

    def prepare(self) -> None:
        """Make the call tables, once all calls are recorded."""
        self._parts = list(self._split())
        self.compiled = all(isinstance(part, _CallTable) for part in self._parts)

    def play(self) -> None:
        for part in self._parts:
            part()

    def __len__(self) -> int:
        return len(self._calls)

    def _split(self) -> Iterator[Callable[[], None]]:
        """Yield the parts of the replay: call tables, and single calls between them."""
        loop = _table_loop() if status().ready else None
        for in_table, calls in groupby(self._calls, lambda call: loop is not None and _fits(*call)):
            if in_table:
                yield _CallTable(loop, list(calls))
            else:
                yield from (partial(_call, *call) for call in calls)


class _CallTable:
    """Table of consecutive calls."""

    kind: ClassVar = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)

    def __init__(self, loop: Any, calls: list[tuple[Any, tuple[Any, ...], Check | None]]) -> None:
        self._loop, self._checks = loop, [check for _, _, check in calls]
        self._table = np.zeros((len(calls), COLUMNS), np.int64)
        for line, (function, arguments, check) in zip(self._table, calls, strict=True):
            line[0] = function_address(function)
            line[1 : 1 + len(arguments)] = [
                argument if isinstance(argument, int) else ctypes.addressof(argument)
                for argument in arguments
            ]
            line[-1] = check is not None
        self._at = address(self._table)

    def __call__(self) -> None:
        made = self._loop(self._at, len(self._table))
        if made == len(self._table):
            return
        found, self._table[made, -1] = int(self._table[made, -1]), 1
        check = self._checks[made]
        if check is not None:
            check(found)


def _fits(function: Any, arguments: tuple[Any, ...], _: Check | None) -> bool:
    """Return whether a call fits into a table: a ctypes function with few arguments."""
    return hasattr(function, "restype") and len(arguments) <= ARGUMENTS


@cache
def _table_loop() -> Any:
    """Return the loop over a table, which returns the number of calls before a failure."""
    name = "call_table"
    return _CallTable.kind(compiled(name, lambda module: _write(module, name), name)[name])


def _write(module: Any, name: str) -> None:
    """Write the loop over a call table."""
    from demitasse.backends.kernels.team.runtime import REGION, Function

    f = Function(module, name, 2)
    (table, count), row = f.arguments, f.local(0)
    with f.forever() as rows:
        with f.when(f.load(row) >= count):
            rows.leave()
        line = table + f.load(row) * (COLUMNS * 8)
        called, *arguments, checked = (f.load(line, 8 * column) for column in range(COLUMNS))
        result = f.call_at(called, *arguments) * REGION >> 32  # of 32 bits
        with f.when(f.unequal(result, 0) & f.unequal(checked, 0)):
            f.store(result, line, 8 * (COLUMNS - 1))
            rows.leave()
        f.store(f.load(row) + 1, row)
    f.give(f.load(row))
