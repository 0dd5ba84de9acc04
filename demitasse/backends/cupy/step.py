"""What the Steps of this backend share.

Every Step reads its inputs before it asks for an output's buffer. In place both are one array, and
``buffer()`` discards what is only on the host: ``read()`` must have copied it to the GPU before.
"""

from __future__ import annotations

from typing import TypeVar

from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.ops import Op
from demitasse.backends.step import Declined, Operands, Step

__all__ = ["NEEDS_BOTTOM", "GpuStep"]

DTYPES = ("float32", "float64")
"""What the kernels compute in."""

O = TypeVar("O", bound=Op)  # noqa: E741 - the type of the operation


NEEDS_BOTTOM = "the kernels still read the bottom while they write the top"
"""Why Steps decline layers in place."""


class GpuStep(Step[Engine, O]):
    """A Step made of kernels and matrix products on a GPU.

    Raises:
        Declined: The operation computes in another dtype than the kernels do.
    """

    def __init__(self, engine: Engine, op: O, at: Operands) -> None:
        super().__init__(engine, op, at)
        if op.dtype not in DTYPES:
            message = f"{op.dtype}; kernels take {' and '.join(DTYPES)}"
            raise Declined(message)

    @property
    def code(self) -> str:
        return "kernel"
