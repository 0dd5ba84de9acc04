"""Map OpenCV's backends and targets to devices.

The target alone selects the device. A target that is not present is replaced by the CPU, with a
warning, like in OpenCV.
"""

import warnings

from demitasse.compat.cvdnn import constants
from demitasse.compat.cvdnn.errors import error, failing_as
from demitasse.core.device import Device, available_devices, current_device
from demitasse.errors import ErrorCode

CUDA = (constants.DNN_TARGET_CUDA, constants.DNN_TARGET_CUDA_FP16)


def _constants(head: str) -> dict[int, str]:
    named = vars(constants).items()
    return dict(sorted((value, name) for name, value in named if name.startswith(head)))


BACKENDS, TARGETS = _constants("DNN_BACKEND_"), _constants("DNN_TARGET_")


def device_of(target: int) -> Device:
    """Return the device of a target; all targets compute in float32."""
    name, current = name_of(target, TARGETS), current_device()
    host = current if current.shares_host else Device("cpu")
    if target == constants.DNN_TARGET_CPU:
        return host
    if target in CUDA and current.kind == "cuda":
        return current
    if target in CUDA and (gpus := _gpus()):
        return Device(gpus[0])
    warnings.warn(f"{name} is not here; the net runs on {host}", RuntimeWarning, stacklevel=4)
    return host


@failing_as("getAvailableTargets")
def getAvailableTargets(be: int) -> list[int]:
    """Return the present targets of a backend; an unknown number is an ``error``."""
    name_of(be, BACKENDS)
    if be in {constants.DNN_BACKEND_DEFAULT, constants.DNN_BACKEND_OPENCV}:
        return [constants.DNN_TARGET_CPU]
    return list(CUDA) if be == constants.DNN_BACKEND_CUDA and _gpus() else []


def _gpus() -> list[str]:
    return [device for device in available_devices() if device.startswith("cuda")]


def name_of(number: int, known: dict[int, str]) -> str:
    """Return the name of a backend or target; an unknown number is an ``error``."""
    if number not in known:
        message = f"{number} is none of {', '.join(f'{name} ({n})' for n, name in known.items())}"
        raise error(message, code=ErrorCode.UNKNOWN, got=number)
    return known[number]
