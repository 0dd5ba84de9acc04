"""What a convolution in kernels of our own works on, and when its filters are made again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from demitasse.backends.onednn.ports import Reader, Writer
from demitasse.backends.step import Memory, Operand

__all__ = ["ConvOperands", "refreshed"]

Version = tuple[int, int]


@dataclass(frozen=True)
class ConvOperands:
    """The operands of a convolution's forward pass, and what follows.

    Attributes:
        source: What is read.
        target: What is written.
        weight: The parameter; None where somebody else updates the filters.
        bias: One offset for each channel of the output: a port, or an array; None for none.
        relu: Whether a rectifier follows.
    """

    source: Reader
    target: Writer
    weight: Operand | None
    bias: Reader | np.ndarray | None = None
    relu: bool = False

    def offsets(self) -> np.ndarray | None:
        """Return the offsets as they are now."""
        return self.bias.array() if isinstance(self.bias, Reader) else self.bias


def refreshed(memory: Memory, version: Version, update: Callable[[np.ndarray], None]) -> Version:
    """Call ``update`` with what a memory holds if that is not ``version``; return its version."""
    now = memory.serial, memory.version
    if now != version:
        update(memory.cpu_data())
    return now
