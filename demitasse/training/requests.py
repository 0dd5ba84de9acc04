"""What a running solver is asked for: to stop, or to write a snapshot."""

from __future__ import annotations

from collections import deque
from typing import Literal

from demitasse.errors import ConfigError, ErrorCode

__all__ = ["Request", "Requests"]

Request = Literal["stop", "snapshot"]


class Requests:
    """Requests in the order in which they came; safe in signal handlers."""

    def __init__(self) -> None:
        self._waiting: deque[Request] = deque()
        self._taken: Request | None = None

    def ask(self, action: Request | None) -> None:
        """Ask for something, unless that is waiting already.

        Args:
            action: "stop", "snapshot", or None to take back what has not been done yet.

        Raises:
            ConfigError: It is something else.
        """
        if action is None:
            self._waiting.clear()
        elif action in {"stop", "snapshot"}:
            if action not in self._waiting:
                self._waiting.append(action)
        else:
            message = f"a solver can be asked to 'stop' or to 'snapshot', not {action!r}"
            raise ConfigError(message, code=ErrorCode.UNKNOWN, field="action", got=action)

    def next(self) -> Request | None:
        """Return the first request and forget it; None when there is none."""
        self._taken = self._waiting.popleft() if self._waiting else None
        return self._taken

    @property
    def undone(self) -> list[Request]:
        """Those that wait, and the one that was taken last, which may not be done yet."""
        return [*([self._taken] if self._taken else []), *self._waiting]
