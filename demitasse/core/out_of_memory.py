"""What a lack of memory is called, whatever raised it."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from demitasse.errors import DemitasseError, OutOfMemoryError

__all__ = ["SHORTAGES", "placed", "shortage_at", "shortages_at"]

Explain = Callable[[Exception], Exception]

SHORTAGES = (OutOfMemoryError, MemoryError, OSError)
"""What may be raised where memory is short."""


def placed(
    error: Exception, place: str, *, doing: str = "", explain: Explain | None = None
) -> Exception:
    """Return an error that says where it happened; a lack of memory becomes an OutOfMemoryError.

    Args:
        error: What was raised.
        place: Where.
        doing: What was done there, for a lack of memory: "forward", "backward", ...
        explain: Makes errors of a device's library errors of ours (``Backend.explained``).
    """
    said = explain(error) if explain is not None else error
    lacks = isinstance(said, OSError) and said.errno == errno.ENOMEM
    if lacks or isinstance(said, MemoryError):
        why = f" ({said})" if str(said) else ""
        message = (
            f"the host has no memory left{why}; make the batch, the input or the layer smaller"
        )
        said = OutOfMemoryError(message)
    if isinstance(said, OutOfMemoryError):
        said.__cause__ = said.__cause__ or (error if error is not said else None)
        return said.at(f"{place}, {doing}" if doing else place)
    return said.at(place) if isinstance(said, DemitasseError) else said


@contextmanager
def shortages_at(place: str, explain: Explain) -> Iterator[None]:
    """Name the place in a lack of memory within the block, unless it says already where it was.

    Args:
        place: Where, or what is done.
        explain: As for ``placed``.

    Raises:
        OutOfMemoryError: The memory does not suffice.
    """
    try:
        yield
    except SHORTAGES as error:
        fault = shortage_at(error, place, explain)
        if fault is error:
            raise
        raise fault from fault.__cause__


def shortage_at(error: Exception, place: str, explain: Explain) -> Exception:
    """Return one of ``SHORTAGES`` with its place, unless it says already where it was."""
    if isinstance(error, OutOfMemoryError) and error.place:
        return error
    return placed(error, place, explain=explain)
