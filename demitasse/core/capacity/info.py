"""What is known of a device's memory."""

from __future__ import annotations

from dataclasses import dataclass

from demitasse.core.capacity.sizes import bytes_text

__all__ = ["MemoryInfo"]


@dataclass(frozen=True)
class MemoryInfo:
    """Memory of a device, in bytes, as it was when it was asked for.

    On a device that works on the host's arrays it is the host's: that of the machine, or of the
    control group (container, job) that the process is in.

    Attributes:
        device: Its name.
        total: What there is; None where the system does not say.
        free: What can still be allocated, within the limit; None where the system does not say.
        used: What blobs, parameters and the solvers' histories of this process hold.
        pooled: What a pool of the device's library keeps for later arrays; it counts as free.
        limit: The setting ``memory_limit``; 0 for none.
        process: What the whole process has in the host's memory; None where the system does not
            say, and on devices with memory of their own.
    """

    device: str
    total: int | None
    free: int | None
    used: int
    pooled: int = 0
    limit: int = 0
    process: int | None = None

    def __str__(self) -> str:
        parts = []
        if self.total is not None and self.free is not None:
            parts.append(f"{bytes_text(self.free)} free of {bytes_text(self.total)}")
        elif self.total is not None:
            parts.append(f"{bytes_text(self.total)} in all")
        parts.append(f"{bytes_text(self.used)} in blobs")
        if self.pooled:
            parts.append(f"{bytes_text(self.pooled)} kept in pools")
        if self.process is not None:
            parts.append(f"{bytes_text(self.process)} in the whole process")
        if self.limit:
            parts.append(f"limited to {bytes_text(self.limit)}")
        return ", ".join(parts)
