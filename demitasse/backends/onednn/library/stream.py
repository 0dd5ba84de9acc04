"""Stream of primitives: the library's processor engine, and scratch memory."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.onednn.library.constants import CPU_ENGINE, DEFAULT_STREAM
from demitasse.backends.onednn.library.failures import check, create

__all__ = ["Stream"]


class _OfThread(threading.local):
    scratchpad: np.ndarray | None = None


class Stream:
    """A stream of the library on this processor.

    Scratch memory belongs to the thread that runs, so nets in different threads do not meet.

    Args:
        library: As :func:`demitasse.backends.onednn.library.library.load` returns it.

    Attributes:
        engine: oneDNN's engine, which stands for the processor.
        handle: oneDNN's stream.
        grown: How often scratch memory was replaced by larger one, in any thread.
    """

    def __init__(self, library: Any) -> None:
        self.library = library
        self.engine = create(library.dnnl_engine_create, CPU_ENGINE, 0)
        self.handle = create(library.dnnl_stream_create, self.engine, DEFAULT_STREAM)
        self.grown = 0
        self._own = _OfThread()

    def memory(self, descriptor: int) -> int:
        """Return a memory object without a buffer."""
        return create(self.library.dnnl_memory_create, descriptor, self.engine, None)

    def like(self, memory: int) -> int:
        """Return another memory object of the same descriptor, without a buffer."""
        descriptor = ctypes.c_void_p()
        check(self.library.dnnl_memory_get_memory_desc(memory, ctypes.byref(descriptor)))
        return self.memory(descriptor.value or 0)

    @property
    def nbytes(self) -> int:
        """Bytes of this thread's scratch memory."""
        return 0 if self._own.scratchpad is None else self._own.scratchpad.nbytes

    def scratchpad(self, size: int) -> np.ndarray:
        """Return this thread's scratch memory of at least ``size`` bytes."""
        own = self._own.scratchpad
        if own is None or own.nbytes < size:
            self.grown += own is not None
            own = self._own.scratchpad = aligned(-(-size // 4))
        return own
