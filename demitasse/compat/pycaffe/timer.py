"""``caffe.Timer``: how long something took.

Source: Caffe, ``src/caffe/util/benchmark.cpp``.
"""

from __future__ import annotations

from time import perf_counter

from demitasse.core.device import current_device

__all__ = ["Timer"]


class Timer:
    """Measures from ``start`` to ``stop``; on a GPU it waits for the work queued before each."""

    def __init__(self) -> None:
        self._started: float | None = None
        self._seconds = 0.0

    def start(self) -> None:
        """Begin to measure; a timer that runs already goes on."""
        if self._started is None:
            current_device().backend.synchronize()
            self._started = perf_counter()

    def stop(self) -> None:
        """End measuring; a timer that does not run keeps its time."""
        if self._started is not None:
            current_device().backend.synchronize()
            self._seconds, self._started = perf_counter() - self._started, None

    @property
    def ms(self) -> float:
        """Time of the last measurement in milliseconds; stops a timer that runs."""
        self.stop()
        return self._seconds * 1000
