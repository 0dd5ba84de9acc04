"""Decorators of OpenCV's functions; ``cv2.error``, to which they convert other errors."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

from demitasse.errors import DemitasseError, ErrorCode

F = TypeVar("F", bound=Callable[..., Any])


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


def also_named(**names: str) -> Callable[[F], F]:
    """Accept the names of another overload: ``also_named(layerName="layer")``; a decorator."""

    def decorated(function: F) -> F:
        @wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            return function(*args, **{names.get(name, name): given[name] for name in given})

        return cast("F", call)

    return decorated
