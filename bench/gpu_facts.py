"""What a GPU's machine has; and sections that end as sections should not, for rehearsals."""

import contextlib
import os
import platform
import sys
import time
from importlib import import_module, metadata
from typing import Any

from demitasse.backends.cupy.library.cudnn_library import cudnn, status
from demitasse.backends.cupy.library.detect import advice, look
from demitasse.core.device import Device

__all__ = ["crashes", "facts", "fails", "hangs"]

LIBRARIES = (
    "array-api-compat", "cupy-cuda13x", "cupy-cuda12x", "numpy", "nvidia-cublas",
    "nvidia-cuda-nvrtc", "nvidia-cudnn-cu13", "nvidia-cudnn-frontend", "protobuf", "torch",
)  # fmt: skip


def facts(device: Device, dry: bool) -> dict[str, Any]:
    """Versions, the GPU and its memory, and how cuDNN describes it."""
    found: dict[str, Any] = {"python": sys.version, "machine": platform.platform()}
    for name in LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    seen = look()
    found["cupy sees"] = vars(seen)
    if not seen.devices:
        found["advice"] = advice(seen)
    found["cuDNN"] = vars(status())
    properties = import_module("cupy").cuda.runtime.getDeviceProperties(0)
    kept = {k: v for k, v in properties.items() if isinstance(v, (int, str))}
    pools, joules = str(device.backend.pools), device.backend.joules
    found["GPU"] = {"memory": pools, "joules": joules, **kept}
    if status().loaded and not dry:
        found["GPU for cuDNN"] = cudnn().create_device_properties(0).serialize()
    return found


def hangs(device: Device, dry: bool) -> None:
    """Take longer than the section may."""
    del device, dry
    time.sleep(600)


def crashes(device: Device, dry: bool) -> None:
    """End the process as a segmentation fault does."""
    del device, dry
    os.abort()


def fails(device: Device, dry: bool) -> None:
    """Find something wrong."""
    del device, dry
    message = "a check that fails"
    raise AssertionError(message)
