"""Notes that blobs take of their changes, so that plans know when to prepare anew."""

from __future__ import annotations

import itertools

__all__ = ["Changes"]

_numbers = itertools.count(1)


class Changes:
    """Tells whether some blob of a net has changed its shape or its memory.

    A plan compares one integer to know that nothing has moved since it was made.

    Attributes:
        number: Of the last change. No number comes twice in a process, so none is lost when
            threads note changes at the same time.
    """

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0

    def note(self) -> None:
        """Note a change."""
        self.number = next(_numbers)
