"""Handles of CUDA's libraries, each for one thread at a time."""

from collections.abc import Callable
from typing import Any


class Handle:
    """A library's handle, from ``idle`` or a new one; the last reference returns it there.

    Handles are not destroyed: that would wait for the device, and end a capture of another thread.
    """

    def __init__(self, idle: list[Any], create: Callable[[], Any]) -> None:
        try:
            self.value = idle.pop()
        except IndexError:
            self.value = create()
        self._idle = idle

    def __del__(self) -> None:
        if hasattr(self, "_idle"):
            self._idle.append(self.value)
