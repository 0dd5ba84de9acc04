"""What a pass lets wait: the work of Steps that follow each other, until all is made ready."""

from __future__ import annotations

from typing import Self

from demitasse.backends.base import Backend

__all__ = ["Waiting"]


class Waiting:
    """Has a backend put off the work of Steps that may wait, and do it before anybody looks.

    Args:
        backend: The backend.
    """

    __slots__ = ("_backend", "_holds")

    def __init__(self, backend: Backend) -> None:
        self._backend, self._holds = backend, False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def begin(self) -> None:
        """Put off what is computed from now on."""
        if not self._holds:
            self._holds = True
            self._backend.hold()

    def end(self) -> None:
        """Compute what was put off, and everything at once from now on."""
        if self._holds:
            self._backend.settle()
            self._holds = False
