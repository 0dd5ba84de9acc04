"""Where nets run, in which phase, and how they are seeded: set for the whole process.

Source: Caffe, ``python/caffe/_caffe.cpp``.
"""

from __future__ import annotations

from demitasse.core import device
from demitasse.core.config import settings
from demitasse.layers import layer_types
from demitasse.layers.user_layer import Phase

__all__ = [
    "TEST",
    "TRAIN",
    "default_phase",
    "layer_type_list",
    "set_device",
    "set_mode_cpu",
    "set_mode_gpu",
    "set_phase_test",
    "set_phase_train",
    "set_random_seed",
]

TRAIN, TEST = Phase.TRAIN, Phase.TEST

_gpu = {"id": 0}
_phase: list[Phase] = []


def set_mode_cpu() -> None:
    """Make nets from now on run on the CPU."""
    device.set_device("cpu")


def set_mode_gpu() -> None:
    """Make nets from now on run on the GPU that ``set_device`` chose, the first by default.

    Where there is none and the setting ``gpu_fallback`` is "cpu", they run on the CPU.

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


def set_phase_train() -> None:
    """Make nets that are given no phase train, as Caffe's first scripts do."""
    _phase[:] = [TRAIN]


def set_phase_test() -> None:
    """Make nets that are given no phase test, as Caffe's first scripts do."""
    _phase[:] = [TEST]


def default_phase() -> Phase | None:
    """Return the phase of nets that are given none, or None where it was not set."""
    return _phase[0] if _phase else None


def layer_type_list() -> list[str]:
    """Return the names of all layer types."""
    return layer_types()
