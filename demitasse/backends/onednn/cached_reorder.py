"""Cached copies of memories in another layout."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.language import command_queue
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.step import Memory

__all__ = ["CachedReorder"]

NEVER = (-1, -1)


class CachedReorder:
    """A memory's contents in another form, converted again after a change.

    While every read follows a change, as for parameters in training, the copy is in shared scratch
    memory. After two reads without a change in between, the copy gets its own memory.

    Args:
        role: Argument of the copy. Copies of one role overwrite each other.
        size: Elements.
        make: Converts the memory to an array of ``size`` elements.
        kept: True to use its own memory from the first read.
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
        """Return the present copy, valid until the next copy of this role. Shape: (size,)."""
        version = memory.serial, memory.version
        if self._own is None:
            if version != self._version and not self._kept:
                lent = engine.scratch_for(self._role, self._size)
                with command_queue.immediate():  # queued calls may still read the scratch memory
                    self._make(memory, lent)
                self._version = version
                return lent
            self._version = NEVER  # of memory of its own
            self._own = aligned(self._size)
        if version != self._version:
            self._version = NEVER  # should this be cut short
            with command_queue.immediate():  # complete before the version is stored
                self._make(memory, self._own)
            self._version = version
        return self._own
