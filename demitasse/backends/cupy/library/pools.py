"""Memory of a GPU as the driver counts it, and what cupy's pools hold of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Pools", "readable"]


@dataclass(frozen=True)
class Pools:
    """One GPU's memory, asked for anew by every property. All sizes are in bytes."""

    cupy: Any
    device: Any

    @property
    def gpu(self) -> str:
        """Name of the GPU, e.g. ``"NVIDIA H200"``."""
        name = self.cupy.cuda.runtime.getDeviceProperties(self.device.id)["name"]
        return name.decode(errors="replace") if isinstance(name, bytes) else str(name)

    @property
    def total(self) -> int:
        """Memory of the GPU."""
        return int(self.device.mem_info[1])

    @property
    def free(self) -> int:
        """What can still be allocated: free on the GPU, or idle in cupy's pool."""
        return int(self.device.mem_info[0]) + self.idle

    @property
    def used(self) -> int:
        """What arrays of this process hold."""
        with self.device:
            return int(self.cupy.get_default_memory_pool().used_bytes())

    @property
    def idle(self) -> int:
        """What the pool keeps for later arrays."""
        with self.device:
            return int(self.cupy.get_default_memory_pool().free_bytes())

    @property
    def limit(self) -> int:
        """What the pool may hold at most (CUPY_GPU_MEMORY_LIMIT), 0 for no limit."""
        with self.device:
            return int(self.cupy.get_default_memory_pool().get_limit())

    @property
    def idle_pinned_blocks(self) -> int:
        """How many blocks of pinned host memory are kept for later."""
        return int(self.cupy.get_default_pinned_memory_pool().n_free_blocks())

    def release(self) -> None:
        """Give idle memory back to the driver and the system."""
        with self.device:
            self.cupy.get_default_memory_pool().free_all_blocks()
        self.cupy.get_default_pinned_memory_pool().free_all_blocks()

    def facts(self) -> dict[str, str | int]:
        """Return everything by name, for reports."""
        return {
            "gpu": self.gpu,
            "total": self.total,
            "free": self.free,
            "used": self.used,
            "idle": self.idle,
            "limit": self.limit,
            "idle_pinned_blocks": self.idle_pinned_blocks,
        }

    def __str__(self) -> str:
        text = (
            f"of {readable(self.total)} on {self.gpu}, {readable(self.free)} are free and this "
            f"process uses {readable(self.used)}"
        )
        return f"{text}, limited to {readable(self.limit)}" if self.limit else text


def readable(nbytes: int) -> str:
    """Write a number of bytes as ``"1.5 GiB"``."""
    size = float(nbytes)
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{nbytes} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
