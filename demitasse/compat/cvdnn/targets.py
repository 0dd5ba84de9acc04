"""From OpenCV's backends and targets to devices.

The device follows the target alone. What this machine does not have is replaced by its processor,
with a warning, as OpenCV does.
"""

from __future__ import annotations

from demitasse.compat.cvdnn import constants
from demitasse.compat.cvdnn.constants import (
    DNN_BACKEND_CUDA,
    DNN_BACKEND_DEFAULT,
    DNN_BACKEND_OPENCV,
    DNN_TARGET_CPU,
    DNN_TARGET_CUDA,
    DNN_TARGET_CUDA_FP16,
)
from demitasse.compat.cvdnn.errors import error, failing_as
from demitasse.core.device import Device, available_devices, current_device
from demitasse.core.log import get_logger

__all__ = ["check_backend", "device_of", "getAvailableTargets"]

CUDA = (DNN_TARGET_CUDA, DNN_TARGET_CUDA_FP16)


def _named(head: str) -> dict[int, str]:
    names = (name for name in constants.__all__ if name.startswith(head))
    return dict(sorted((getattr(constants, name), name) for name in names))


BACKENDS, TARGETS = _named("DNN_BACKEND_"), _named("DNN_TARGET_")


def check_backend(backend: int) -> None:
    """Refuse a number that is no backend's.

    Raises:
        error: It is none.
    """
    _name(backend, BACKENDS)


def device_of(target: int) -> Device:
    """Return the device for a target; numbers are computed in float32 on each.

    Raises:
        error: The number is no target's.
    """
    name = _name(target, TARGETS)
    here = current_device()
    host = here if here.shares_host else Device("cpu")
    if target == DNN_TARGET_CPU:
        return host
    if target in CUDA:
        if here.kind == "cuda":
            return here
        found = [device for device in available_devices() if device.startswith("cuda")]
        if found:
            return Device(found[0])
    get_logger(__name__).warning("%s is not here; the net runs on %s", name, host)
    return host


@failing_as("getAvailableTargets")
def getAvailableTargets(be: int) -> list[int]:
    """Return the targets that this machine has for a backend.

    Raises:
        error: The number is no backend's.
    """
    _name(be, BACKENDS)
    if be in {DNN_BACKEND_DEFAULT, DNN_BACKEND_OPENCV}:
        return [DNN_TARGET_CPU]
    gpu = any(device.startswith("cuda") for device in available_devices())
    return list(CUDA) if be == DNN_BACKEND_CUDA and gpu else []


def _name(number: int, known: dict[int, str]) -> str:
    if number not in known:
        message = f"{number} is none of {', '.join(f'{name} ({n})' for n, name in known.items())}"
        raise error(message)
    return known[number]
