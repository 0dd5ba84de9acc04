"""One thread at a time: whose turn it is to work on a net."""

from __future__ import annotations

import threading

from demitasse.errors import ErrorCode, NetError

__all__ = ["Turn"]


class Turn:
    """Held while a thread works on a net; a thread that holds it may take it again.

    Nobody waits for it: two passes over the same blobs are a mistake, and their order would be
    chance.

    Args:
        name: Of the net.
    """

    __slots__ = ("_acquire", "_name", "_release")

    def __init__(self, name: str) -> None:
        lock = threading.RLock()
        self._name, self._acquire, self._release = name, lock.acquire, lock.release

    def __enter__(self) -> None:
        """Take it.

        Raises:
            NetError: Another thread has it.
        """
        if not self._acquire(False):
            message = (
                f"net {self._name!r} is at work in another thread; run a net in one thread at a "
                "time, or give each thread its own (net.clone())"
            )
            raise NetError(message, code=ErrorCode.BAD_STATE, net=self._name)

    def __exit__(self, *exception: object) -> None:
        """Give it back."""
        self._release()
