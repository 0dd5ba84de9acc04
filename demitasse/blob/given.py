"""Arrays that others give: of the host, or of a device, which is never left unasked."""

from __future__ import annotations

from typing import Any

import numpy as np

from demitasse.core.device import Device
from demitasse.errors import DeviceError, ErrorCode

__all__ = ["host_array", "is_on"]

HOST_KINDS = {1, 3}
"""How DLPack numbers devices whose memory the host reads: its own, and pinned memory."""


def is_on(array: Any, device: Device) -> bool:
    """Whether an array is one that a device with memory of its own works on; numpy's never are."""
    if device.shares_host or isinstance(array, np.ndarray):
        return False
    return device.backend.holds(array)


def host_array(given: Any, what: str, device: Device) -> np.ndarray:
    """Return what was given as an array on the host; numbers and lists are, too.

    Args:
        given: The array.
        what: What it is for, in messages.
        device: Where it is to go.

    Raises:
        DeviceError: It is on a device.
    """
    if isinstance(given, np.ndarray) or not hasattr(given, "__dlpack_device__"):
        return np.asarray(given)
    why: Exception | None = None
    if int(given.__dlpack_device__()[0]) in HOST_KINDS:
        try:
            return np.asarray(given)
        except (TypeError, RuntimeError) as error:  # some mock devices say that they are the host
            why = error
    library = type(given).__module__.partition(".")[0]
    message = (
        f"{what} is on {device}, and the {library} array given is on {given.device}; nothing is "
        f"copied from device to device unasked: give an array of {device}, or a copy on the host, "
        "as numpy's"
    )
    raise DeviceError(
        message, code=ErrorCode.CONFLICT, device=str(device), got=str(given.device)
    ) from why
