"""Out-of-memory errors: convert what Python and libraries raise, and add the location."""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from demitasse.errors import DemitasseError, OutOfMemoryError

Explain = Callable[[Exception], Exception]

MEMORY_ERRORS = (OutOfMemoryError, MemoryError, OSError)
"""Types of the exceptions that a failed allocation may raise."""


def with_location(
    error: Exception, place: str, *, doing: str = "", explain: Explain | None = None
) -> Exception:
    """Return the error with its location; a failed allocation becomes an OutOfMemoryError.

    ``doing`` is the activity, for out-of-memory errors: "forward", "backward", ... ``explain``
    converts errors of a device library to errors of ours (``Backend.explained``).
    """
    result = explain(error) if explain is not None else error
    failed = isinstance(result, OSError) and result.errno == errno.ENOMEM
    if failed or isinstance(result, MemoryError):
        reason = f" ({result})" if str(result) else ""
        message = (
            f"the host has no memory left{reason}; make the batch, the input or the layer smaller"
        )
        result = OutOfMemoryError(message)
    if isinstance(result, OutOfMemoryError):
        result.__cause__ = result.__cause__ or (error if error is not result else None)
        return result.at(f"{place}, {doing}" if doing else place)
    return result.at(place) if isinstance(result, DemitasseError) else result


@contextmanager
def memory_errors_at(place: str, explain: Explain) -> Iterator[None]:
    """Add a location, or an activity, to out-of-memory errors of the block that have none."""
    try:
        yield
    except MEMORY_ERRORS as error:
        fault = located_memory_error(error, place, explain)
        if fault is error:
            raise
        raise fault from fault.__cause__


def located_memory_error(error: Exception, place: str, explain: Explain) -> Exception:
    """Return one of ``MEMORY_ERRORS`` with a location; an error that has one is unchanged."""
    if isinstance(error, OutOfMemoryError) and error.place:
        return error
    return with_location(error, place, explain=explain)
