"""Engine of the Steps: threads and tuning of the kernels, copies between layouts, shared memory."""

import math
import os
import threading
from dataclasses import replace
from functools import cache, lru_cache

import numpy as np

from demitasse.backends.arrays import give_back
from demitasse.backends.cpu import layout as layouts
from demitasse.backends.cpu.copies import ConvertingCopy, LayoutCopy
from demitasse.backends.cpu.layout import Layout
from demitasse.backends.kernels import language as kernels
from demitasse.backends.kernels.language.target import vector_width
from demitasse.backends.kernels.language.team import prepare
from demitasse.backends.kernels.language.values import LINE_FLOATS
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.numpy.step import Engine as HostEngine
from demitasse.backends.step import Declined
from demitasse.core.config import settings
from demitasse.core.config.table import MOST_THREADS
from demitasse.core.host import cores
from demitasse.core.threads import Uninterrupted
from demitasse.errors import DeviceError, ErrorCode

SLAB = 1 << 20
"""Elements that are moved to a layout at a time, of an array that is given back."""


def thread_count() -> int:
    """Return the number of threads of a pass; 1 without kernels."""
    if not kernels.status().ready:
        return 1
    return int(settings.get_often("threads")) or _of_openmp() or cores()


def _of_openmp() -> int:
    """Return the number of threads in ``OMP_NUM_THREADS``; 0 if absent or invalid.

    Of a list, the first number counts: that of the outermost level.
    """
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    number = int(first) if first.isdecimal() and len(first) < 10 else 0
    return number if number <= MOST_THREADS else 0


class _OfThread(threading.local):
    """State of a thread."""

    ready = -1, 0  # settings and process for which the threads of a pass are ready
    taken = 0  # scratch memory that the call of a kernel has taken, which the thread prepares


class Engine(HostEngine):
    """Kernels of this processor.

    Attributes:
        tuning: Of the kernels.
        copy: Returns the copy from one layout to another of the same shape; a DeviceError if no
            kernel copies so many axes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tuning = Tuning(vector_width())
        self._of_thread = _OfThread()
        self.copy = lru_cache(layouts.MOST_KEPT)(self._copy)

    def ready_threads(self) -> None:
        """Start the threads of a pass.

        Raises:
            DeviceError: The threads cannot be started.
        """
        now = settings.changes, os.getpid()
        if now != self._of_thread.ready:
            prepare(thread_count())
            self._of_thread.ready = now

    def reorder(self, source: np.ndarray, here: Layout, target: np.ndarray, there: Layout) -> None:
        """Copy elements from one layout to another of the same shape; padding becomes 0.

        Raises:
            DeviceError: No kernel copies so many axes.
        """
        self.copy(here, there)(source, target)

    def move(self, source: np.ndarray, target: np.ndarray, there: Layout) -> None:
        """Copy elements from C order to a layout, and release ``source``.

        Large arrays are copied slab by slab, and the memory of each copied slab is returned to
        the system. The two arrays are never complete at the same time.
        """
        parts = layouts.slabs(there, SLAB)
        copies = [(part, self.copy(layouts.plain(part.shape), part)) for part in parts]
        read = written = 0
        # an interrupt would leave half of each array
        with Uninterrupted():
            for part, copy in copies:
                old = source[read : read + math.prod(part.shape)]
                copy(_filled(old, part), target[written : written + part.size])
                if len(parts) > 1:
                    give_back(old)
                read, written = read + old.size, written + part.size

    def _copy(self, here: Layout, there: Layout) -> LayoutCopy | ConvertingCopy:
        try:
            kind = LayoutCopy if here.bf16 == there.bf16 else ConvertingCopy
            # also after a change of the setting jit: the contents are in the layout
            return kind(here, there, replace(self.tuning, threads=thread_count()))
        except Declined as declined:
            message = f"{declined}, {here} and {there}"
            raise DeviceError(message, code=ErrorCode.FAILED) from None

    def begin_call(self) -> None:
        """Begin the call of a kernel, and release the scratch memory of this thread's last call."""
        self._of_thread.taken = 0

    def call_scratch(self, size: int) -> np.ndarray:
        """Return scratch memory that the present call has not taken before. Shape: (size,)."""
        first = self._of_thread.taken
        self._of_thread.taken = first + -(-size // LINE_FLOATS) * LINE_FLOATS  # whole cache lines
        return self.scratch("call", (first + size,))[first:]


def _filled(values: np.ndarray, layout: Layout) -> np.ndarray:
    """Return values in C order; missing last rows are zeros."""
    lacking = math.prod(layout.shape) - values.size
    return np.concatenate([values, np.zeros(lacking, values.dtype)]) if lacking > 0 else values


@cache
def engine() -> Engine:
    """Return this process's engine."""
    return Engine()
