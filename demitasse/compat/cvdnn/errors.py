"""The exception of this room, and how faults of the engine become it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from demitasse.errors import DemitasseError

__all__ = ["error", "failing_as"]


class error(DemitasseError):
    """Raised where ``cv2.dnn`` raises ``cv2.error``.

    Attributes:
        func: The function that failed, by OpenCV's name.
        err: What is wrong and what to do about it.
        msg: Both in one text, as ``str`` of the exception.
    """

    def __init__(self, message: str, func: str = "") -> None:
        super().__init__(message)
        self.func, self.err = func, message
        if func:
            self.at(func)

    @property
    def msg(self) -> str:
        """What ``str`` of the exception shows."""
        return str(self)


@contextmanager
def failing_as(func: str) -> Iterator[None]:
    """Let what the engine refuses be an ``error`` of ``func``; also a decorator."""
    try:
        yield
    except error as fault:
        if not fault.func:
            fault.func = func
            fault.at(func)
        raise
    except DemitasseError as fault:
        raise error(str(fault), func) from fault
