"""What the Steps of this backend share.

Every Step reads all its inputs before it asks for an output's buffer: in place they are one array,
and asking for a buffer gives up what was not read.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

from demitasse.backends.base import Array, BlobLike, Operands, Step
from demitasse.backends.cupy.library.engine import engine_of

__all__ = ["EngineStep", "total_of"]

DTYPES = ("float32", "float64")
"""What the kernels compute in."""


class EngineStep(Step):
    """A Step over fixed blobs, run by kernels and matrix products.

    Args:
        backend: The backend, which has an engine.
        operands: The blobs.
    """

    def __init__(self, backend: Any, operands: Operands) -> None:
        self.engine = engine_of(backend)
        self.operands = operands

    def lower_backward(self, operands: Operands) -> bool:
        self.operands = operands
        return True


class _Summed(Protocol):
    """A blob whose gradient can be added to where it is."""

    def mutable_gpu_diff(self) -> Array: ...


def total_of(blob: BlobLike) -> Array:
    """Return the gradient of a parameter, to be added to; zeros at first."""
    return cast("_Summed", blob).mutable_gpu_diff()
