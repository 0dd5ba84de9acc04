"""Base of this backend's Steps.

Every Step reads its inputs before it asks for an output's buffer. In place both are one array, and
``buffer()`` discards what is only on the host: ``read()`` must have copied it to the GPU before.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar, TypeVar

from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.cupy.narrow import NarrowParameter, narrow_blob, narrow_operands
from demitasse.backends.ops import Op
from demitasse.backends.step import Declined, Operand, Operands, Step

__all__ = ["NEEDS_BOTTOM", "GpuStep"]

DTYPES = ("float32", "float64")
"""Compute dtype of the kernels."""

O = TypeVar("O", bound=Op)  # noqa: E741 - the type of the operation


NEEDS_BOTTOM = "the kernels still read the bottom while they write the top"
"""Reason for declining in-place layers."""


class GpuStep(Step[Engine, O]):
    """A Step made of kernels and matrix products on a GPU.

    Attributes:
        dtype: What its kernels take: the dtype that it computes in, or how values are kept in 16
            bits. Where its kernels do not know that, arrays are converted around it.

    Raises:
        Declined: The operation computes in another dtype than the kernels do.
    """

    narrow_params: ClassVar[Collection[int] | None] = None
    """Parameters that its kernels read in 16 bits, besides bottoms and tops; None where they read
    nothing in 16 bits."""

    def __init__(self, engine: Engine, op: O, at: Operands) -> None:
        self.dtype = op.dtype
        params = self.narrow_params
        if at.storage != "float" and params is not None and self.takes_narrow(op):
            self.dtype, at = at.storage, narrow_operands(engine, at, params)
        super().__init__(engine, op, at)
        if op.dtype not in DTYPES:
            message = f"{op.dtype}; kernels take {' and '.join(DTYPES)}"
            raise Declined(message)

    def taken(self, blob: Operand) -> Operand:
        """Return another blob as this Step's kernels take it."""
        return blob if self.dtype == self.op.dtype else narrow_blob(blob, self.at.storage)

    def takes_narrow(self, op: O) -> bool:
        """Return whether its kernels take 16 bits for this operation."""
        return True

    @property
    def workspace(self) -> int:
        """Bytes of parameters in 16 bits."""
        return sum(one.nbytes for one in self.at.params if isinstance(one, NarrowParameter))

    @property
    def code(self) -> str:
        return "kernel" if self.dtype == self.op.dtype else f"kernel ({self.dtype})"
