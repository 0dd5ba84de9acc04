"""Libraries of extras: the one error for a library that is not installed."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from demitasse.errors import DemitasseError, ErrorCode

Error = TypeVar("Error", bound=DemitasseError)


def missing_extra(
    kind: type[Error],
    purpose: str,
    library: str,
    extra: str,
    /,
    *,
    instead: str = "",
    **details: object,
) -> Error:
    """Return the error for a library that cannot be imported; call it in an ``except`` block.

    Args:
        kind: Class of the error.
        purpose: The task that needs the library, e.g. "drawing charts".
        library: Name of the library.
        extra: The extra that installs it.
        instead: Alternative without the library, e.g. "write a .csv file".
        **details: Further details of the error.
    """
    error = sys.exception()
    absent = error is None or isinstance(error, ModuleNotFoundError)
    reason = "" if absent else f", which cannot be imported ({error})"
    other = f", or {instead}" if instead else ""
    message = f"{purpose} needs {library}{reason}; run: pip install 'demitasse[{extra}]'{other}"
    return kind(message, code=ErrorCode.UNAVAILABLE, extra=extra, **details)


@contextmanager
def needs_extra(
    kind: type[DemitasseError], purpose: str, library: str, extra: str, /, **details: Any
) -> Iterator[None]:
    """Import libraries of an extra in the block; arguments and error are of ``missing_extra``."""
    try:
        yield
    except ImportError:
        raise missing_extra(kind, purpose, library, extra, **details) from None


def lacks_extra(error: BaseException) -> bool:
    """Return True if an error comes from a library that is not installed.

    Such an error is not the fault of a record or a file: all records fail alike.
    """
    return (
        isinstance(error, DemitasseError)
        and error.code == ErrorCode.UNAVAILABLE
        and "extra" in error.details
    )
