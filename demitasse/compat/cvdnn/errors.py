"""``cv2.error``: the exception of this package, and the conversion of other errors."""

from collections.abc import Iterator
from contextlib import contextmanager

from demitasse.errors import DemitasseError, ErrorCode


class error(DemitasseError):
    """Raised in place of ``cv2.error``: ``func`` failed, ``err`` is the fault, ``msg`` has both."""

    def __init__(
        self, message: str, func: str = "", *, code: ErrorCode | None = None, **details: object
    ) -> None:
        super().__init__(message, code=code, **details)
        self.func, self.err = func, message
        if func:
            self.at(func)

    @property
    def msg(self) -> str:
        """Text of the exception."""
        return str(self)


@contextmanager
def failing_as(func: str) -> Iterator[None]:
    """Convert errors of Demitasse to an ``error`` of ``func``; also a decorator."""
    try:
        yield
    except error as fault:
        if not fault.func:
            fault.func = func
            fault.at(func)
        raise
    except DemitasseError as fault:
        raise error(str(fault), func, code=fault.code, **fault.details) from fault
