"""Copies of what a memory holds, in the form that some code reads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.language import later
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.step import Memory

__all__ = ["CachedReorder"]

NEVER = (-1, -1)


class CachedReorder:
    """A memory's contents in another form, made again when they have changed.

    As long as they have changed whenever it is asked for, like parameters in training, it lies in
    memory that copies use in turn. Asked for twice between two changes, it gets memory of its own.

    Args:
        role: Of what argument it is. Copies of one role take each other's place.
        size: Elements.
        make: Writes it: from the memory, to an array of so many elements.
        kept: Whether it has memory of its own from the beginning.
    """

    __slots__ = ("_kept", "_make", "_own", "_role", "_size", "_version")

    def __init__(
        self,
        role: int,
        size: int,
        make: Callable[[Memory, np.ndarray], None],
        *,
        kept: bool = False,
    ) -> None:
        self._role, self._size, self._make, self._kept = role, size, make, kept
        self._own: np.ndarray | None = None
        self._version = NEVER

    @property
    def nbytes(self) -> int:
        """Bytes of its own memory."""
        return 0 if self._own is None else self._own.nbytes

    def of(self, memory: Memory, engine: Engine) -> np.ndarray:
        """Return it as it is now; until the next one of its role is made. Shape: (size,)."""
        version = memory.serial, memory.version
        if self._own is None:
            if version != self._version and not self._kept:
                lent = engine.scratch_for(self._role, self._size)
                with later.at_once():  # what was put off may still read what is there
                    self._make(memory, lent)
                self._version = version
                return lent
            self._version = NEVER  # of memory of its own
            self._own = aligned(self._size)
        if version != self._version:
            self._version = NEVER  # should this be cut short
            with later.at_once():  # it is done when it is said to be
                self._make(memory, self._own)
            self._version = version
        return self._own
