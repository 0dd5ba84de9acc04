"""Calls of kernels and of functions, recorded for replay.

A recording of calls is replayed without preparation: compiled code runs the kernels of a table.
Each thread records its own calls.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from itertools import chain, groupby
from typing import Any, ClassVar

from demitasse.backends.kernels.language.compiler import status
from demitasse.backends.kernels.language.team import own_team
from demitasse.backends.recording import NotRecorded

Call = tuple[Any, tuple[Any, ...], object]
"""A function, its arguments, and an object to keep alive as long as the call may be repeated."""


class _OfThread(threading.local):
    recording: CallRecording | None = None


_own = _OfThread()


def call(function: Callable[..., object], *arguments: Any, uses_blas: bool = True) -> None:
    """Call a function. A recording calls it again; calls within this call are part of it.

    Before a function that ``uses_blas``, a pass sets the threads of that library.
    """
    recording, _own.recording = _own.recording, None
    try:
        function(*arguments)
    finally:
        _own.recording = recording
    if recording is not None:
        recording.calls.append((function, arguments, None))
        recording.compiled &= not uses_blas


def run_kernel(kernel: int, argument: int, threads: int, keep_alive: object = None) -> None:
    """Run a kernel on a team of threads. A recording runs it again.

    Args:
        kernel: Address of the kernel.
        argument: Argument of each thread's call; memory that it is the address of never changes.
        threads: Greatest number of threads.
        keep_alive: Object to keep alive as long as the kernel may run again.
    """
    run, arguments = own_team().run, (kernel, argument, threads)
    run(*arguments)
    if _own.recording is not None:
        _own.recording.calls.append((run, arguments, keep_alive))


def mark_incomplete() -> None:
    """Mark the recording as incomplete: something was computed without calls."""
    if _own.recording is not None:
        _own.recording.complete = False


def reuse(versions: Iterable[tuple[int, int]]) -> None:
    """Note memories, by serial and version, from whose contents something was made before."""
    if _own.recording is not None:
        _own.recording.reused.update(versions)


class CallRecorder:
    """Records the calls of some work; the work is done at the same time.

    Args:
        key: Returns the key of the recordings; see ``Recorder.key``.
    """

    computes: ClassVar = True

    def __init__(self, key: Callable[[], Hashable]) -> None:
        self.key = key

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
    """Calls, in order.

    Attributes:
        calls: The calls.
        reused: Memories, by serial and version, whose contents the calls need unchanged.
        complete: True if nothing was computed without the calls.
        compiled: True if a replay runs only kernels, and functions that use no BLAS.
    """

    nbytes = 0

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.reused: set[tuple[int, int]] = set()
        self.complete = self.compiled = True
        self._parts: list[Callable[[], object]] = []

    def prepare(self) -> None:
        """Make the tables of kernels, once all calls are recorded."""
        run = own_team().run if status().ready else None
        for is_kernel, calls in groupby(self.calls, lambda call: call[0] is run):
            if is_kernel:
                self._parts.append(_table([arguments for _, arguments, _ in calls]))
            else:
                self._parts += [partial(function, *arguments) for function, arguments, _ in calls]

    def play(self) -> None:
        for part in self._parts:
            part()

    def __len__(self) -> int:
        return len(self.calls)


def _table(kernels: list[tuple[Any, ...]]) -> Callable[[], object]:
    """Return a function that runs kernels one after the other, given what ``Team.run`` takes."""
    table = (ctypes.c_int64 * (3 * len(kernels)))(*chain(*kernels))
    return partial(own_team().play, table, len(kernels))
