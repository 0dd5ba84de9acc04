"""Status codes of the library's functions, and creation of handles."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_void_p
from typing import Any

from demitasse.errors import DeviceError

__all__ = ["check", "create", "failure"]

STATUSES = {
    1: "out of memory",
    2: "invalid arguments",
    3: "not implemented",
    4: "no further implementation",
    5: "an error while it ran",
    6: "not required",
}


def failure(status: int) -> str:
    """Return what a status other than 0 means."""
    return STATUSES.get(status, f"status {status}")


def check(status: int) -> None:
    """Raise where a call failed.

    Raises:
        DeviceError: ``status`` is not 0.
    """
    if status:
        message = f"oneDNN failed: {failure(status)}"
        raise DeviceError(message)


def create(function: Callable[..., int], *arguments: Any) -> int:
    """Return the handle that one of the library's functions makes.

    Raises:
        DeviceError: It fails.
    """
    handle = c_void_p()
    check(function(ctypes.byref(handle), *arguments))
    return handle.value or 0
