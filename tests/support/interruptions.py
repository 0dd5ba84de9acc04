"""Exceptions raised at any line of the package: Ctrl-C, or a lack of memory, at a bad moment."""

import gc
import os
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import demitasse
from demitasse.errors import DeviceError

PACKAGE = str(Path(demitasse.__file__).parent)
APART = (str(Path(PACKAGE) / "core" / "threads.py"),)
"""Files in which nothing is raised: while they run, Ctrl-C waits."""

Line = tuple[str, int]

POINTS = int(os.environ.get("DEMITASSE_INTERRUPTIONS", "0"))
"""At how many lines of each work to raise; 0 for the sample of an ordinary run."""


class Interrupt:
    """Raises an error at one of the lines of the package that this thread goes through.

    Args:
        at: At which of them, from 1; None for none, to count them.
        error: What is raised.

    Attributes:
        lines: The lines met so far.
        raised: Whether the error was raised.
    """

    def __init__(
        self, at: int | None = None, error: type[BaseException] = KeyboardInterrupt
    ) -> None:
        self.at, self.error, self.raised = at, error, False
        self.lines: list[Line] = []
        self._ours: dict[CodeType, bool] = {}

    def __enter__(self) -> "Interrupt":
        self._before = sys.gettrace()
        gc.disable()  # what it would run is no part of the work
        sys.settrace(self._trace)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(self._before)
        gc.enable()

    def _trace(self, frame: FrameType, event: str, value: object) -> Any:
        code = frame.f_code
        if event == "call" and _is_finalizer(frame):
            return None
        ours = self._ours.get(code)
        if ours is None:
            file = code.co_filename
            ours = self._ours[code] = file.startswith(PACKAGE) and file not in APART
        if not ours:
            return None
        if event == "line":
            self.lines.append((code.co_filename, frame.f_lineno))
            if len(self.lines) == self.at:
                sys.settrace(None)
                self.raised = True
                raise self.error
        return self._trace


def _is_finalizer(frame: FrameType) -> bool:
    """Whether what begins is run when something is thrown away: exceptions of it are lost."""
    caller = frame.f_back
    if frame.f_code.co_name == "__del__":
        return True
    return caller is not None and caller.f_code.co_filename == weakref.__file__


def chosen(lines: list[Line], sample: int) -> list[int]:
    """Return when to raise, by number: the first and the last time that each line is met.

    Args:
        lines: All lines that are met.
        sample: How many numbers to return at most in an ordinary run, evenly spread.
    """
    most = POINTS or sample
    first, last = dict[Line, int](), dict[Line, int]()
    for number, line in enumerate(lines, 1):
        first.setdefault(line, number)
        last[line] = number
    numbers = sorted({*first.values(), *last.values()})
    if len(numbers) <= most:
        return numbers
    return [numbers[i * len(numbers) // most] for i in range(most)]


def told(what: str, times: int) -> None:
    """Say how often something was cut short, where that is many times."""
    if POINTS:
        sys.stderr.write(f"\n{what}: cut short {times} times")


@contextmanager
def interrupted(at: int, error: type[BaseException]) -> Iterator[Interrupt]:
    """Raise an error at a line of the block, and go on after the block."""
    interrupt = Interrupt(at, error)
    try:
        with interrupt:
            yield interrupt
    except (KeyboardInterrupt, MemoryError):
        pass
    except DeviceError as shortage:  # what a net calls a lack of memory
        if not isinstance(shortage.__cause__, MemoryError):
            raise
