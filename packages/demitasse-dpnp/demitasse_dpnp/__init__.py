"""dpnp as a backend of Demitasse: devices ``dpnp:cpu`` and ``dpnp:gpu:0`` of SYCL.

SYCL finds the CPU by an OpenCL driver. The driver of the package ``intel-opencl-rt`` is used where
the environment names no other.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from demitasse.backends.arrays import Array
from demitasse.backends.base import Backend
from demitasse.errors import OutOfMemoryError

__all__ = ["DpnpBackend"]

DRIVER = Path(sys.prefix, "lib", "libintelocl.so")
if DRIVER.exists():  # read when SYCL is loaded, by the next import
    os.environ.setdefault("OCL_ICD_FILENAMES", str(DRIVER))

import dpctl  # noqa: E402
import dpnp  # noqa: E402


class DpnpBackend(Backend):
    """One device of SYCL.

    Args:
        index: Kind and number of the device: "cpu", "gpu:0".
    """

    name = "dpnp"
    default_index = "gpu:0" if dpctl.has_gpu_devices() else "cpu"
    xp = dpnp

    def __init__(self, index: str = "") -> None:
        super().__init__(index or self.default_index)
        array = dpnp.empty(0, device=self.index)
        self.array_device, self._queue = array.device, array.sycl_queue
        self.has_float64 = self._queue.sycl_device.has_aspect_fp64

    @classmethod
    def devices(cls) -> list[str]:
        gpus = len(dpctl.get_devices(device_type="gpu"))
        cpus = dpctl.get_devices(device_type="cpu")
        return [f"dpnp:gpu:{number}" for number in range(gpus)] + ["dpnp:cpu"] * bool(cpus)

    @classmethod
    def missing(cls) -> str:
        return "SYCL found no device; pip install 'demitasse-dpnp[cpu]', or install a GPU's driver"

    def environment(self) -> dict[str, str]:
        return {"dpnp": dpnp.__version__, "device": self._queue.sycl_device.name}

    def explained(self, error: Exception) -> Exception:
        """Return an out-of-memory error of SYCL as Demitasse's; other errors as they are."""
        if not isinstance(error, dpctl.memory.USMAllocationError):
            return error
        message = f"dpnp:{self.index} is out of memory ({error}); reduce the batch size"
        return OutOfMemoryError(message, device=f"dpnp:{self.index}")

    # -- arrays --------------------------------------------------------------------------------

    def zeros(self, size: int, dtype: str) -> Array:
        return dpnp.zeros(size, dtype=self.dtype(dtype), sycl_queue=self._queue)

    def upload(self, host: np.ndarray, device: Array) -> None:
        device[...] = self.asarray(host)

    def download(self, device: Array, host: np.ndarray) -> None:
        host[...] = dpnp.asnumpy(device)

    def asarray(self, host: np.ndarray) -> Array:
        self.dtype(host.dtype.name)
        return dpnp.asarray(np.array(host, order="C"), sycl_queue=self._queue, copy=True)

    def to_host(self, array: Array) -> np.ndarray:
        return np.array(dpnp.asnumpy(array))

    def holds(self, array: Any) -> bool:
        return isinstance(array, dpnp.ndarray) and array.sycl_queue == self._queue

    # -- work ----------------------------------------------------------------------------------

    def synchronize(self) -> None:
        self._queue.wait()

    def memory_info(self) -> tuple[int, int] | None:
        device = self._queue.sycl_device
        if not device.is_gpu:
            return None
        free = dpctl.utils.intel_device_info(device).get("free_memory", device.global_mem_size)
        return free, device.global_mem_size
