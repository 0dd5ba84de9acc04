"""Signals that stop a training run or write a snapshot: SIGINT, SIGHUP and SIGTERM.

Source: Caffe, ``src/caffe/util/signal_handler.cpp``.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Literal, Self

Effect = Literal["stop", "snapshot", "none"]

HANG_UP: int | None = getattr(signal, "SIGHUP", None)  # Windows has none


class Signals:
    """Context manager that turns signals into requests to a solver.

    The handler calls ``request`` with "stop" or "snapshot" at any point; the solver acts between
    two iterations. A second "stop" raises KeyboardInterrupt at once.
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
        """Install the handlers; Python allows this in the main thread alone."""
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in self._effects}
        return self

    def __exit__(self, *error: object) -> None:
        """Restore the previous handlers."""
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
            text = "\nStopping after this iteration. Repeat to stop at once, without a snapshot.\n"
            with suppress(OSError, ValueError):
                # without the stream's buffer, which is not safe in a signal handler
                os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, text.encode())
