"""Host memory that a queued copy still reads.

cupy gives pinned memory back to its pool as soon as the last array of it is gone, even while a
copy out of it is under way, and the next owner would write into it.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

__all__ = ["Flights"]


class Flights:
    """Arrays kept alive until queued copies are done, host arrays above all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: deque[tuple[Any, object]] = deque()

    def add(self, event: Any, arrays: object) -> None:
        """Hold ``arrays`` until ``event`` has passed."""
        with self._lock:
            self._held.append((event, arrays))
        self.settle()

    def settle(self) -> None:
        """Release arrays whose copies are done, oldest first."""
        with self._lock:
            while self._held and self._held[0][0].done:
                self._held.popleft()

    def __len__(self) -> int:
        return len(self._held)
