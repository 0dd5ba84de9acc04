"""What Ctrl-C, a hang-up and a request to terminate do to a training run.

Source: Caffe, ``src/caffe/util/signal_handler.cpp``.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Literal, Self

__all__ = ["Effect", "Signals"]

Effect = Literal["stop", "snapshot", "none"]

HANG_UP: int | None = getattr(signal, "SIGHUP", None)  # Windows has none


class Signals:
    """While in its ``with`` block, turns signals into requests to a solver.

    The solver does what it is asked for between two iterations. A second signal that means "stop"
    leaves at once, as KeyboardInterrupt.

    Args:
        request: Takes "stop" or "snapshot"; called in the middle of anything.
        sigint: What Ctrl-C does.
        sighup: What a hang-up does.
        sigterm: What a request to terminate does, which job schedulers and ``kill`` send.
    """

    def __init__(
        self, request: Callable[[Any], None], sigint: Effect, sighup: Effect, sigterm: Effect
    ) -> None:
        self._request = request
        self._effects: dict[int, Effect] = {signal.SIGINT: sigint, signal.SIGTERM: sigterm}
        if HANG_UP is not None:
            self._effects[HANG_UP] = sighup
        self._before: dict[int, Any] = {}
        self._stopping = False

    def __enter__(self) -> Self:
        """Take the signals over; in a thread other than the main one, where Python cannot, not."""
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in self._effects}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        effect = self._effects[number]
        if effect == "none":
            return
        if effect == "snapshot":
            self._request("snapshot")
        elif self._stopping:
            raise KeyboardInterrupt
        else:
            self._stopping = True
            self._request("stop")
            _say("\nStopping after this iteration. Once more: stop at once, without a snapshot.\n")


def _say(text: str) -> None:
    """Write to standard error from a signal handler, which must not touch its buffer."""
    try:
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, text.encode())
    except (OSError, ValueError):
        return
