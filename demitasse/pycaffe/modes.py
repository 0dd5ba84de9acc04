"""Where nets run and how they are seeded, set for the whole process.

Source: Caffe, ``python/caffe/_caffe.cpp``.
"""

from __future__ import annotations

from demitasse import device
from demitasse.config import settings

__all__ = ["set_device", "set_mode_cpu", "set_mode_gpu", "set_random_seed"]

_gpu = {"id": 0}


def set_mode_cpu() -> None:
    """Make nets from now on run on the CPU."""
    device.set_device("cpu")


def set_mode_gpu() -> None:
    """Make nets from now on run on the GPU that ``set_device`` chose, the first by default.

    Raises:
        DeviceError: There is no such GPU; says what was found and how to get one.
    """
    device.set_device(f"cuda:{_gpu['id']}")


def set_device(device_id: int) -> None:
    """Choose the GPU that ``set_mode_gpu`` uses.

    Raises:
        DeviceError: The process is in GPU mode and there is no such GPU.
    """
    _gpu["id"] = int(device_id)
    if device.current_device().kind == "cuda":
        set_mode_gpu()


def set_random_seed(seed: int) -> None:
    """Seed the nets made from now on."""
    settings.set("seed", int(seed))
