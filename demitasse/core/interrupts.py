"""Work that Ctrl-C does not cut in two."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["Uninterrupted"]


class Uninterrupted:
    """While in its ``with`` block, Ctrl-C waits; it has its effect when the block is left.

    For short work that must be done whole. Other threads than the main one are never interrupted.
    """

    def __enter__(self) -> Self:
        """Take the signal over."""
        self._came: tuple[int, FrameType | None] | None = None
        self._before: Any = None
        if threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):
                self._before = handler
                signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        """Give the signal back, and let it have the effect it had to wait with."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            if self._came is not None:
                self._before(*self._came)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = number, frame
