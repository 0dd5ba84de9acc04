"""Base of this backend's Steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from demitasse.backends.numpy.engine import Engine
from demitasse.backends.ops import Op
from demitasse.backends.step import Operand, Step

__all__ = ["NEEDS_BOTTOM", "HostStep"]

O = TypeVar("O", bound=Op)  # noqa: E741 - the type of the operation


NEEDS_BOTTOM = "numpy's Step needs the bottom"
"""Reason for declining in-place layers."""


class HostStep(Step[Engine, O]):
    """A Step made of array functions that write directly into the blobs' buffers."""

    @property
    def code(self) -> str:
        return "numpy"

    def scratch(self, name: str, shape: tuple[int, ...], dtype: str = "") -> np.ndarray:
        """Return working memory, of the operation's dtype unless another is named."""
        return self.engine.scratch(name, shape, dtype or self.op.dtype)

    def add_gradient(self, blob: Operand, compute: Callable[[np.ndarray], object]) -> None:
        """Add to a parameter's gradient what ``compute`` writes into the array it is given.

        A gradient that was cleared is written in place, without a sum.

        Shapes: the array has the shape of ``blob``.
        """
        if blob.diff_memory.cleared:
            compute(blob.diff_buffer())
            return
        part = self.scratch("gradient", blob.shape)
        compute(part)
        blob.add_diff(part)
