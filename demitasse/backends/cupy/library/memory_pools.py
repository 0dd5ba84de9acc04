"""Memory pools, properties and energy of a GPU."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from demitasse.core.text import bytes_text
from demitasse.errors import DeviceError, ErrorCode

POOLED = 1 << 20
"""Largest size in bytes of pinned memory from cupy's pool, which rounds sizes up to a power of two.
The driver allocates larger blocks, of which a net has few, in their exact size."""


def pinned_memory(cupy: Any, size: int, dtype: str) -> np.ndarray:
    """Return a pinned array of the current GPU, or an ordinary one if pinning fails.

    Shape: (size,), not initialised.
    """
    cuda, nbytes = cupy.cuda, size * np.dtype(dtype).itemsize
    try:
        if not size:
            return np.empty(size, dtype)
        if nbytes <= POOLED:
            pinned = cuda.alloc_pinned_memory(nbytes)
        else:
            pinned = cuda.PinnedMemoryPointer(cuda.PinnedMemory(nbytes), 0)
    except (cuda.runtime.CUDARuntimeError, MemoryError):
        return np.empty(size, dtype)
    return np.frombuffer(pinned, dtype, size)


@dataclass(frozen=True)
class Pools:
    """Memory of one GPU; every property queries the pools. All sizes are in bytes."""

    cupy: Any
    device: Any

    @property
    def gpu(self) -> str:
        """Name of the GPU, e.g. ``"NVIDIA H200"``."""
        return str(properties(self.device.id)["name"])

    @property
    def total(self) -> int:
        """Memory of the GPU."""
        return int(self.device.mem_info[1])

    @property
    def free(self) -> int:
        """Return the bytes that can be allocated: free or idle in cupy's pool, up to its limit."""
        free = int(self.device.mem_info[0]) + self.idle
        return min(free, max(0, self.limit - self.used)) if self.limit else free

    @property
    def used(self) -> int:
        """Return the bytes of this process's arrays."""
        with self.device:
            return int(self.cupy.get_default_memory_pool().used_bytes())

    @property
    def idle(self) -> int:
        """Return the idle bytes of the pool."""
        with self.device:
            return int(self.cupy.get_default_memory_pool().free_bytes())

    @property
    def limit(self) -> int:
        """Return the pool's limit in bytes (``limit_to``, CUPY_GPU_MEMORY_LIMIT); 0: no limit."""
        with self.device:
            return int(self.cupy.get_default_memory_pool().get_limit())

    def limit_to(self, nbytes: int) -> None:
        """Set the pool's limit in bytes; 0 removes the limit."""
        with self.device:
            self.cupy.get_default_memory_pool().set_limit(size=nbytes)

    def release(self) -> None:
        """Give idle memory back to the driver and the system."""
        with self.device:
            self.cupy.get_default_memory_pool().free_all_blocks()
        self.cupy.get_default_pinned_memory_pool().free_all_blocks()

    def __str__(self) -> str:
        text = (
            f"of {bytes_text(self.total)} on {self.gpu}, {bytes_text(self.free)} are free and this "
            f"process uses {bytes_text(self.used)}"
        )
        return f"{text}, limited to {bytes_text(self.limit)}" if self.limit else text


def joules_of(bus_id: str) -> float | None:
    """Return the energy that the GPU of a PCI bus id has used, by NVML.

    None without the package nvidia-ml-py, on GPUs before Volta, and on parts of a GPU (MIG).
    """
    try:
        nvml = import_module("pynvml")
        nvml.nvmlInit()
        gpu = nvml.nvmlDeviceGetHandleByPciBusId(bus_id)
        return float(nvml.nvmlDeviceGetTotalEnergyConsumption(gpu)) / 1e3
    except Exception:  # NVMLError, or whatever a missing library raises
        return None


Property = int | str | list[int]


def properties(number: int) -> dict[str, Property]:
    """Return the properties of a GPU by CUDA's names; sizes in bytes, clock rates in kHz."""
    try:
        runtime = import_module("cupy").cuda.runtime
        found = runtime.getDeviceProperties(number)
    except Exception as error:  # whatever a missing driver or library raises
        message = f"cuda:{number} cannot be asked for its properties: {error}"
        raise DeviceError(message, code=ErrorCode.UNAVAILABLE, device=f"cuda:{number}") from error
    plain: dict[str, Property] = {}
    for name, value in found.items():
        if isinstance(value, bytes) and name == "name":
            plain[name] = value.rstrip(b"\0").decode(errors="replace")
        elif isinstance(value, int | str):
            plain[name] = value
        elif isinstance(value, tuple | list):
            plain[name] = [int(part) for part in value]
    return plain
