"""Kernels on the CPU, over layouts that suit them; ``Device("cpu")`` uses this backend.

Without llvmlite or the processor's vectors, the device computes with numpy alone. Importing this
loads nothing; asking for the device does.
"""

from functools import cache

from demitasse.backends.base import Backend
from demitasse.backends.kernels.language import status
from demitasse.backends.kernels.language.target import vector_width
from demitasse.core.log import get_logger

__all__ = ["cpu_backend", "slow_reason", "status"]


def slow_reason() -> str:
    """Return why ``Device("cpu")`` computes with numpy alone; "" if it has kernels."""
    found = status()
    if found.ready and vector_width() > 0:
        return ""
    return f"slow path: device 'cpu' computes with numpy alone, {found}"


@cache
def _warn(reason: str) -> None:
    get_logger(__name__).warning("%s", reason)


def cpu_backend() -> type[Backend]:
    """Return the backend of ``Device("cpu")``."""
    reason = slow_reason()
    if not reason:
        from demitasse.backends.cpu.backend import CpuBackend

        return CpuBackend
    if status().reason != "it was switched off":
        _warn(reason)
    from demitasse.backends.numpy.backend import NumpyBackend

    return NumpyBackend
