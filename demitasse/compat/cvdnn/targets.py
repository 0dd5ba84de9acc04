"""Map OpenCV's backends and targets to devices.

The target alone selects the device. A target that is not present is replaced by the CPU, with a
warning, like in OpenCV.
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
from demitasse.errors import ErrorCode

CUDA = (DNN_TARGET_CUDA, DNN_TARGET_CUDA_FP16)


def _constants(head: str) -> dict[int, str]:
    names = (name for name in constants.__all__ if name.startswith(head))
    return dict(sorted((getattr(constants, name), name) for name in names))


BACKENDS, TARGETS = _constants("DNN_BACKEND_"), _constants("DNN_TARGET_")


def check_backend(backend: int) -> None:
    """Check the number of a backend.

    Raises:
        error: The number is unknown.
    """
    _name(backend, BACKENDS)


def device_of(target: int) -> Device:
    """Return the device of a target; all targets compute in float32.

    Raises:
        error: The number is unknown.
    """
    name = _name(target, TARGETS)
    current = current_device()
    host = current if current.shares_host else Device("cpu")
    if target == DNN_TARGET_CPU:
        return host
    if target in CUDA:
        if current.kind == "cuda":
            return current
        gpus = [device for device in available_devices() if device.startswith("cuda")]
        if gpus:
            return Device(gpus[0])
    get_logger(__name__).warning("%s is not here; the net runs on %s", name, host)
    return host


@failing_as("getAvailableTargets")
def getAvailableTargets(be: int) -> list[int]:
    """Return the present targets of a backend.

    Raises:
        error: The number is unknown.
    """
    _name(be, BACKENDS)
    if be in {DNN_BACKEND_DEFAULT, DNN_BACKEND_OPENCV}:
        return [DNN_TARGET_CPU]
    gpu = any(device.startswith("cuda") for device in available_devices())
    return list(CUDA) if be == DNN_BACKEND_CUDA and gpu else []


def _name(number: int, known: dict[int, str]) -> str:
    if number not in known:
        message = f"{number} is none of {', '.join(f'{name} ({n})' for n, name in known.items())}"
        raise error(message, code=ErrorCode.UNKNOWN, got=number)
    return known[number]
