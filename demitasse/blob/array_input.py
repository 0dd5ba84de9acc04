"""Arrays from the caller: on the host, or on a device; never copied between devices."""

from __future__ import annotations

from typing import Any

import numpy as np

from demitasse.core.device import Device
from demitasse.errors import DeviceError, ErrorCode

__all__ = ["host_array", "is_on"]

HOST_KINDS = {1, 3}
"""DLPack's numbers of devices whose memory the host reads: host and pinned memory."""


def is_on(array: Any, device: Device) -> bool:
    """Return whether an array is on this device, if the device has a memory of its own."""
    if device.shares_host or isinstance(array, np.ndarray):
        return False
    return device.backend.holds(array)


def host_array(array: Any, what: str, device: Device) -> np.ndarray:
    """Return an array on the host, from an array, a number or lists.

    Args:
        array: The array.
        what: Name of its use in messages.
        device: Its destination.

    Raises:
        DeviceError: The array is on a device.
    """
    if isinstance(array, np.ndarray) or not hasattr(array, "__dlpack_device__"):
        return np.asarray(array)
    why: Exception | None = None
    if int(array.__dlpack_device__()[0]) in HOST_KINDS:
        try:
            return np.asarray(array)
        except (TypeError, RuntimeError) as error:  # mock devices may claim to be the host
            why = error
    library = type(array).__module__.partition(".")[0]
    message = (
        f"got a {library} array on {array.device} for {what} on {device}; pass an array on "
        f"{device}, or a copy on the host, as of numpy"
    )
    raise DeviceError(
        message, code=ErrorCode.CONFLICT, device=str(device), got=str(array.device)
    ) from why
